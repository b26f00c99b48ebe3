# Run at every build: writes the commit of the sources and the kernels' fingerprints into OUTPUT, which
# changes, and so is compiled again, only when one of them does. In: SOURCE, INPUT, OUTPUT, GIT.
#
# A fingerprint says what a kernel is, so that measurements of another one are known as stale
# (python/src/sluice/staleness.py computes the same): of a CUDA kernel the hash of its lines in data/sass,
# of a CPU kernel that of the sources of all of them.
set(SLUICE_COMMIT unknown)
set(SLUICE_DIRTY false)
if(GIT AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse HEAD
    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  execute_process(COMMAND ${GIT} -C ${SOURCE} status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(NOT failed)
    set(SLUICE_COMMIT ${head})
  endif()
  if(changes)
    set(SLUICE_DIRTY true)
  endif()
endif()

file(GLOB listings ${SOURCE}/data/sass/*.txt)
foreach(listing ${listings})  # sorted by name
  file(STRINGS ${listing} lines REGEX " cuda\\.[a-z0-9_]+$")
  foreach(line ${lines})
    string(REGEX MATCH "[^ ]+$" kernel ${line})
    list(APPEND kernels ${kernel})
    string(APPEND of_${kernel} "${line}\n")
  endforeach()
endforeach()
file(GLOB sources ${SOURCE}/src/cpu/* ${SOURCE}/src/math/*)
foreach(source ${sources})
  file(SHA256 ${source} sum)
  string(APPEND of_cpu "${sum}\n")
endforeach()
list(APPEND kernels cpu)
list(REMOVE_DUPLICATES kernels)
list(SORT kernels)
foreach(kernel ${kernels})
  string(SHA256 sum "${of_${kernel}}")
  string(SUBSTRING ${sum} 0 16 sum)
  list(APPEND SLUICE_FINGERPRINTS ${kernel}=${sum})
endforeach()
list(JOIN SLUICE_FINGERPRINTS " " SLUICE_FINGERPRINTS)
configure_file(${INPUT} ${OUTPUT} @ONLY)
