// Opens phalanx_torch from a program that does not link torch.
//
// The engine is built for one minor version of torch, which its file name carries (libphalanx_torch-2.11.so). Before
// anything is loaded, engine and torch are looked for and compared; what is missing or does not fit is an Error that says
// what was found, what was expected and the command that cures it.
//
// The engine:  the file named by PHALANX_LIBRARY; else ../lib of the program; else the package phalanx in
//              ../lib/python3.*/site-packages of the program.
// Its torch:   the package beside the package phalanx; else the one that environment_python() imports.
#pragma once
#include <string>

namespace phalanx {

struct Engine {
  std::string library;        // path of libphalanx_torch-<torch_minor>.so
  std::string torch_minor;    // "2.11", for which it was built
  std::string torch_root;     // folder of the Python package torch
  std::string torch_version;  // "2.11.0", found there
};

// The Python of the environment that `program` (a path) belongs to: PHALANX_PYTHON; else python3 beside the program; else
// the one that the program was built with; else "python3", the first in the PATH.
std::string environment_python(const std::string& program);

// Looks and compares; loads nothing. `program` is the path of an executable.
Engine find_engine(const std::string& program);

// Whether program and engine were built together with kernels for GPUs.
bool engine_is_built_for_gpus();

// The path of this process's executable.
std::string this_program();

class EngineLibrary {
 public:
  // Loads the engine and, before it, the torch that was found. It stays loaded until the process ends.
  explicit EngineLibrary(const Engine& engine);

  // A function with C linkage. Throws Error when the engine has none of this name: program and engine are of different
  // versions.
  template <class Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  std::string path_;
  void* handle_ = nullptr;
};

}  // namespace phalanx
