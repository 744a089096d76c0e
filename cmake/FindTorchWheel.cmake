# LibTorch out of the installed PyPI wheel, found without importing torch and without torch's own CMake package (which
# fixes compiler flags, architectures and RPATHs of its own).
#
#   TorchWheel::cpu    ATen, autograd, dispatcher, c10d: libtorch_cpu and libc10, needs no CUDA toolkit
#   TorchWheel::cuda   TorchWheel::cpu plus libtorch_cuda and libc10_cuda, when the wheel has them
#   TorchWheel_ROOT, TorchWheel_VERSION (2.11.0), TorchWheel_MINOR (2.11)
#
# pip's build isolation hides the environment's packages behind PYTHONPATH; -E ignores it, so that torch is found there too.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
foreach(_flag -B -E)
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" ${_flag} -c [[
import importlib.util, pathlib, re
root = pathlib.Path(importlib.util.find_spec("torch").submodule_search_locations[0])
version = re.search(r"__version__ = '([^'+]+)", (root / "version.py").read_text()).group(1)
print(root, version, sep=";", end="")]]
    OUTPUT_VARIABLE _torch
    RESULT_VARIABLE _result
    ERROR_QUIET)
  if(_result EQUAL 0)
    break()
  endif()
endforeach()
if(_result EQUAL 0)
  list(GET _torch 0 TorchWheel_ROOT)
  list(GET _torch 1 TorchWheel_VERSION)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" TorchWheel_MINOR "${TorchWheel_VERSION}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  TorchWheel
  REQUIRED_VARS TorchWheel_ROOT
  VERSION_VAR TorchWheel_VERSION
  REASON_FAILURE_MESSAGE
    "no torch in ${Python3_EXECUTABLE}. Install it (python3 -m pip install 'torch>=2.11'), pass another Python with -DPython3_EXECUTABLE=, or, where the builder makes an environment of its own, say --no-build-isolation")

if(TorchWheel_FOUND AND NOT TARGET TorchWheel::cpu)
  foreach(_library c10 torch_cpu c10_cuda torch_cuda)
    if(EXISTS "${TorchWheel_ROOT}/lib/lib${_library}.so")
      add_library(TorchWheel::${_library} SHARED IMPORTED)
      set_target_properties(TorchWheel::${_library} PROPERTIES IMPORTED_LOCATION
                                                               "${TorchWheel_ROOT}/lib/lib${_library}.so")
    endif()
  endforeach()
  add_library(TorchWheel::cpu INTERFACE IMPORTED)
  target_include_directories(TorchWheel::cpu SYSTEM INTERFACE "${TorchWheel_ROOT}/include")
  target_compile_features(TorchWheel::cpu INTERFACE cxx_std_20)
  target_link_libraries(TorchWheel::cpu INTERFACE TorchWheel::torch_cpu TorchWheel::c10)
  if(TARGET TorchWheel::torch_cuda)
    add_library(TorchWheel::cuda INTERFACE IMPORTED)
    target_compile_definitions(TorchWheel::cuda INTERFACE USE_C10D_NCCL)
    # Nothing references libtorch_cuda by symbol, yet its operators must be registered.
    target_link_libraries(
      TorchWheel::cuda INTERFACE TorchWheel::cpu TorchWheel::c10_cuda -Wl,--push-state,--no-as-needed
                                 "${TorchWheel_ROOT}/lib/libtorch_cuda.so" -Wl,--pop-state)
  endif()
endif()
