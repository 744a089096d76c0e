# Where things go. A wheel (scikit-build-core) holds the engine inside the package, where the torch of the same environment
# is its neighbour, and the program beside the environment's Python. `cmake --install` makes the usual prefix with headers
# and a CMake package.
if(SKBUILD)
  set(library_dir "${SKBUILD_PLATLIB_DIR}/phalanx/lib")
  set(program_dir "${SKBUILD_SCRIPTS_DIR}")
  set(library_rpath "$ORIGIN/../../torch/lib")
else()
  set(library_dir ${CMAKE_INSTALL_LIBDIR})
  set(program_dir ${CMAKE_INSTALL_BINDIR})
  set(library_rpath "${TorchWheel_ROOT}/lib")
endif()

if(TARGET phalanx_torch)
  set_target_properties(phalanx_torch PROPERTIES INSTALL_RPATH "${library_rpath}")
  install(TARGETS phalanx_torch EXPORT PhalanxTargets LIBRARY DESTINATION ${library_dir})
endif()
if(TARGET phalanx)
  install(TARGETS phalanx RUNTIME DESTINATION ${program_dir})
endif()
if(SKBUILD)
  install(DIRECTORY recipes DESTINATION "${SKBUILD_PLATLIB_DIR}/phalanx")
endif()

if(TARGET phalanx_torch AND NOT SKBUILD)
  include(CMakePackageConfigHelpers)
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Phalanx)
  install(DIRECTORY include/phalanx DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
  install(EXPORT PhalanxTargets NAMESPACE Phalanx:: DESTINATION ${package_dir})
  write_basic_package_version_file(PhalanxConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES cmake/PhalanxConfig.cmake cmake/FindTorchWheel.cmake
                ${CMAKE_CURRENT_BINARY_DIR}/PhalanxConfigVersion.cmake DESTINATION ${package_dir})
endif()
