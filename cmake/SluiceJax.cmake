# XLA's FFI headers: SLUICE_JAX_INCLUDE (jax.ffi.include_dir()) as given, or that of the Python found.
# With SLUICE_JAX=AUTO the operators are left out where there are none.
set(SLUICE_JAX_INCLUDE "" CACHE PATH "What jax.ffi.include_dir() returns, for XLA's FFI headers")
if(NOT SLUICE_JAX_INCLUDE)
  find_package(Python REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import importlib.util as u; s = u.find_spec('jaxlib'); print(s.submodule_search_locations[0] if s else '', end='')"
    OUTPUT_VARIABLE jaxlib_dir COMMAND_ERROR_IS_FATAL ANY)
  if(EXISTS "${jaxlib_dir}/include/xla/ffi/api/ffi.h")
    set_property(CACHE SLUICE_JAX_INCLUDE PROPERTY VALUE "${jaxlib_dir}/include")
  elseif(SLUICE_JAX STREQUAL "AUTO")
    message(STATUS "JAX operators: left out, ${Python_EXECUTABLE} has no jaxlib")
    set(SLUICE_JAX OFF)
  else()
    message(FATAL_ERROR "SLUICE_JAX: ${Python_EXECUTABLE} has no jaxlib; set SLUICE_JAX_INCLUDE")
  endif()
endif()
