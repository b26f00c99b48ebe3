# Install, export for find_package(sluice), pkg-config. The installed tree may be moved as a whole.
#   sluice::sluice  libsluice.so        sluice::static  libsluice.a
#   sluice::cutlass  headers alone: nodes for CUTLASS, where SLUICE_CUTLASS is on
# Component "runtime" is what the Python wheel holds (pyproject.toml): the library and the program.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS sluice sluice_static EXPORT sluice-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    COMPONENT runtime NAMELINK_COMPONENT development
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(SKBUILD)  # a wheel holds no symbolic links: one file, called by its SONAME
  get_target_property(soversion sluice SOVERSION)
  set_target_properties(sluice PROPERTIES VERSION ${soversion})
endif()
if(TARGET sluice_cli)
  file(RELATIVE_PATH library_from_program
    ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  # The first entry serves the build tree, which has its programs in bin and libraries in lib.
  set_target_properties(sluice_cli PROPERTIES
    INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN/${library_from_program}")
  install(TARGETS sluice_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  install(TARGETS sluice_verify LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime)
  # `sluice report` runs this package with the python3 that it finds.
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/src/ DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice/python
    PATTERN __pycache__ EXCLUDE)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(SLUICE_CUTLASS)
  add_library(sluice_cutlass INTERFACE)
  set_target_properties(sluice_cutlass PROPERTIES EXPORT_NAME cutlass)
  target_include_directories(sluice_cutlass INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  # CMake 3.25 knows no C++20 of this nvcc.
  target_compile_options(sluice_cutlass INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
  install(TARGETS sluice_cutlass EXPORT sluice-targets)
  set(cutlass_headers ${CMAKE_INSTALL_INCLUDEDIR}/sluice/cutlass)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/sluice/cutlass/ DESTINATION ${cutlass_headers})
  install(FILES ${PROJECT_SOURCE_DIR}/src/math/gate.hpp DESTINATION ${cutlass_headers}/math)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
install(EXPORT sluice-targets NAMESPACE sluice:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/sluice-config.cmake.in
  ${PROJECT_BINARY_DIR}/sluice-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sluice-config-version.cmake
  COMPATIBILITY SameMinorVersion)  # before 1.0 a minor version may break; docs/abi.md
install(FILES ${PROJECT_BINARY_DIR}/sluice-config.cmake
  ${PROJECT_BINARY_DIR}/sluice-config-version.cmake DESTINATION ${package_dir})

file(RELATIVE_PATH SLUICE_PREFIX_FROM_PC
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" SLUICE_PREFIX_FROM_PC "${SLUICE_PREFIX_FROM_PC}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/sluice.pc.in ${PROJECT_BINARY_DIR}/sluice.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
