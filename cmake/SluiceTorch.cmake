# Torch's headers: SLUICE_TORCH_DIR (the folder of the package torch) as given, or that of the
# Python found. With SLUICE_TORCH=AUTO the operators are left out where there are none.
set(SLUICE_TORCH_DIR "" CACHE PATH "Folder of the Python package torch, for its headers")
if(NOT SLUICE_TORCH_DIR)
  find_package(Python REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '', end='')"
    OUTPUT_VARIABLE torch_dir COMMAND_ERROR_IS_FATAL ANY)
  if(EXISTS "${torch_dir}/include/torch/csrc/stable/library.h")
    set_property(CACHE SLUICE_TORCH_DIR PROPERTY VALUE "${torch_dir}")
  elseif(SLUICE_TORCH STREQUAL "AUTO")
    message(STATUS "Torch operators: left out, ${Python_EXECUTABLE} has no Torch 2.11 or later")
    set(SLUICE_TORCH OFF)
  else()
    message(FATAL_ERROR "SLUICE_TORCH: ${Python_EXECUTABLE} has no Torch 2.11 or later; set SLUICE_TORCH_DIR")
  endif()
endif()
