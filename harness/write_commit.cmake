# Run at every build: writes the commit of the sources into OUTPUT, which changes, and so is compiled
# again, only when the commit or the state of the working tree does. In: SOURCE, INPUT, OUTPUT, GIT.
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
configure_file(${INPUT} ${OUTPUT} @ONLY)
