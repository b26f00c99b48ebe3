# Where CUTLASS is, for cuda.sm100 and examples/cutlass: sluice_cutlass_dir. SLUICE_CUTLASS_DIR is a
# checkout (its include/ and tools/util/include/), 4.2 or later; empty: the one in Python's package
# nvidia-cutlass.
set(SLUICE_CUTLASS_DIR "" CACHE PATH "CUTLASS 4.2 or later; empty asks Python's nvidia-cutlass")
set(sluice_cutlass_dir ${SLUICE_CUTLASS_DIR})
if(NOT sluice_cutlass_dir)
  find_program(PYTHON3 python3 REQUIRED)
  execute_process(COMMAND ${PYTHON3} -c
    "import importlib.util as u; print(u.find_spec('cutlass_library').submodule_search_locations[0])"
    OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(sluice_cutlass_dir ${package}/source)
endif()
if(NOT EXISTS ${sluice_cutlass_dir}/include/cutlass/cutlass.h)
  message(FATAL_ERROR "SLUICE_CUTLASS: no CUTLASS in '${sluice_cutlass_dir}'; set SLUICE_CUTLASS_DIR or "
                      "install nvidia-cutlass")
endif()
