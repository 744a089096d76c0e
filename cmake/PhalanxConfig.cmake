# find_package(Phalanx) gives Phalanx::phalanx: the engine with its public headers. It needs the torch wheel it was built
# against, looked for in the environment of Python3_EXECUTABLE.
include(CMakeFindDependencyMacro)
list(APPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
find_dependency(TorchWheel)
include("${CMAKE_CURRENT_LIST_DIR}/PhalanxTargets.cmake")
