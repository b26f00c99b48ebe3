# sluice_add_test(<name> TIER <label> SOURCES <files…> [LIBRARIES <targets…>] [ARGS <args…>]
#                 [NO_HARNESS] [STATIC] [BATCH] [THREAD_SANITIZER])
# One GoogleTest program, one CTest entry, labelled by tier: unit, property, numerics, gpu, self, large.
# NO_HARNESS: links the library alone; src/ stays on the include path for the scalar maths.
# STATIC: links the static library, whose hidden functions can be tested.
# BATCH: its files' names do not collide, so that CMAKE_UNITY_BUILD may compile them together.
# THREAD_SANITIZER: the program's own sources are built with it, whatever the rest is.
find_package(GTest REQUIRED)

# gcc 12's ThreadSanitizer cannot place itself under strong address randomisation: its programs run
# without, where that may be switched off.
set(sluice_tsan_launcher setarch ${CMAKE_HOST_SYSTEM_PROCESSOR} -R)
execute_process(COMMAND ${sluice_tsan_launcher} true RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
if(NOT result EQUAL 0)
  set(sluice_tsan_launcher)
endif()

function(sluice_add_test name)
  cmake_parse_arguments(arg "NO_HARNESS;STATIC;BATCH;THREAD_SANITIZER" "TIER;TIMEOUT"
                        "SOURCES;LIBRARIES;ARGS" ${ARGN})
  if(NOT arg_TIER OR NOT arg_SOURCES)
    message(FATAL_ERROR "sluice_add_test(${name}): TIER and SOURCES are required")
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES SLUICE_LINKS_STATIC ${arg_STATIC})
  if(NOT arg_BATCH)
    set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  endif()
  if(arg_NO_HARNESS)
    target_link_libraries(${name} PRIVATE $<IF:$<BOOL:${arg_STATIC}>,sluice::static,sluice::sluice>)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  else()
    target_link_libraries(${name} PRIVATE sluice_harness)
  endif()
  target_link_libraries(${name} PRIVATE sluice_options GTest::gtest GTest::gtest_main
                        ${arg_LIBRARIES})
  if(NOT arg_TIER STREQUAL large)  # whose own loops are long
    # Two thirds of the time to compile; the library keeps its flags.
    target_compile_options(${name} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
  endif()
  if(SLUICE_SANITIZE)
    # gcc 12 takes instrumented std::optional for uninitialised (bugs 80635, 105562).
    target_compile_options(${name} PRIVATE -Wno-maybe-uninitialized)
  endif()
  if(arg_THREAD_SANITIZER AND NOT SLUICE_SANITIZE)  # else all is built with that
    target_compile_options(${name} PRIVATE -fsanitize=thread -g1)
    target_link_options(${name} PRIVATE -fsanitize=thread)
    set(launcher ${sluice_tsan_launcher})
  elseif(SLUICE_SANITIZE MATCHES thread)
    set(launcher ${sluice_tsan_launcher})
  else()
    set(launcher)
  endif()
  add_test(NAME ${name} COMMAND ${launcher} $<TARGET_FILE:${name}> ${arg_ARGS})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(SLUICE_SANITIZE)
    math(EXPR arg_TIMEOUT "4 * ${arg_TIMEOUT}")  # instrumented, and compiled with -O1
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${arg_TIER} TIMEOUT ${arg_TIMEOUT})
endfunction()
