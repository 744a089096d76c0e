#include "core/engine_library.h"

#include "core/error.h"
#include "core/file.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <regex>
#include <unistd.h>
#include <vector>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReinstall =
    ", in the source folder: python3 -m pip install --force-reinstall --no-deps .";
#ifdef PHALANX_CUDA
constexpr bool kBuiltForGpus = true;
constexpr std::array kTorchLibraries = {"libc10.so", "libtorch_cpu.so", "libc10_cuda.so", "libtorch_cuda.so"};
#else
constexpr bool kBuiltForGpus = false;
constexpr std::array kTorchLibraries = {"libc10.so", "libtorch_cpu.so"};
#endif

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// "2.11" of libphalanx_torch-2.11.so; empty for any other name.
std::string minor_of(const fs::path& library) {
  static const std::regex kName(R"(libphalanx_torch-(\d+\.\d+)\.so)");
  std::smatch match;
  const std::string name = library.filename();
  return std::regex_match(name, match, kName) ? match[1].str() : "";
}

std::vector<fs::path> engines_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (!minor_of(entry.path()).empty()) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Where an installation puts the engine, seen from the program.
std::vector<fs::path> engine_folders(const fs::path& program) {
  const fs::path lib = program.parent_path().parent_path() / "lib";
  std::vector<fs::path> folders = {lib};
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(lib, ignored)) {
    if (entry.path().filename().string().starts_with("python3.")) {
      folders.push_back(entry.path() / "site-packages/phalanx/lib");
      folders.push_back(entry.path() / "dist-packages/phalanx/lib");  // the system Python of Debian
    }
  }
  return folders;
}

// The engines of the first folder that has any, or the one that PHALANX_LIBRARY names.
std::vector<fs::path> find_libraries(const std::string& program) {
  if (const std::string named = variable("PHALANX_LIBRARY"); !named.empty()) {
    PHALANX_CHECK(!minor_of(named).empty(), Error, "PHALANX_LIBRARY is ", named,
                  "; expected the path of a file libphalanx_torch-<minor version of torch>.so");
    PHALANX_CHECK(fs::exists(named), Error, "PHALANX_LIBRARY is ", named,
                  ", which does not exist; name the engine's file, or unset it to use the installed one");
    return {named};
  }
  std::string searched;
  for (const fs::path& folder : engine_folders(program)) {
    if (auto found = engines_in(folder); !found.empty()) {
      return found;
    }
    searched += "\n  " + folder.string();
  }
  fail("the engine is not installed: no libphalanx_torch-*.so for ", program, " in", searched,
       "\nInstall it from the source folder: ", environment_python(program),
       " -m pip install .\nor name its file in PHALANX_LIBRARY");
}

std::string in_shell_quotes(const std::string& text) {
  return "'" + std::regex_replace(text, std::regex("'"), "'\\''") + "'";
}

// The folder of the package torch that this Python would import, without importing it; empty when it has none.
std::string torch_of_python(const std::string& python) {
  const std::string command = in_shell_quotes(python) +
                              " -P -c 'import importlib.util as u; "
                              "print(u.find_spec(\"torch\").submodule_search_locations[0], end=\"\")'"
                              " 2>/dev/null </dev/null";
  FILE* pipe = ::popen(command.c_str(), "re");
  PHALANX_CHECK(pipe != nullptr, Error, "cannot start ", python, errno_text(errno));
  std::string output;
  std::array<char, 4096> part;
  while (const std::size_t bytes = std::fread(part.data(), 1, part.size(), pipe)) {
    output.append(part.data(), bytes);
  }
  return ::pclose(pipe) == 0 ? output : "";
}

std::string torch_version(const fs::path& root) {
  const std::string file = root / "version.py";
  const std::string text = read_text(file, 1 << 20);
  std::smatch match;
  PHALANX_CHECK(std::regex_search(text, match, std::regex(R"(__version__ = '(\d+\.\d+[^'+]*))")), IoError,
                file, ": no line __version__ = '<number>'; reinstall torch");
  return match[1];
}

std::string minor_of_version(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

}  // namespace

std::string environment_python(const std::string& program) {
  if (std::string named = variable("PHALANX_PYTHON"); !named.empty()) {
    return named;
  }
  for (const fs::path& python :
       {fs::path(program).parent_path() / "python3", fs::path(PHALANX_BUILD_PYTHON)}) {
    if (fs::exists(python)) {
      return python;
    }
  }
  return "python3";
}

bool engine_is_built_for_gpus() { return kBuiltForGpus; }

std::string this_program() { return fs::read_symlink("/proc/self/exe"); }

Engine find_engine(const std::string& program) {
  const std::vector<fs::path> libraries = find_libraries(program);
  const std::string python = environment_python(program);
  const std::string& wanted = minor_of(libraries.back());

  fs::path torch = libraries.back().parent_path().parent_path().parent_path() / "torch";
  if (!fs::exists(torch / "version.py")) {
    torch = torch_of_python(python);
  }
  PHALANX_CHECK(!torch.empty(), Error, libraries.back().string(), " needs torch ", wanted, ", and ", python,
                " has no torch. Install it: ", python, " -m pip install 'torch==", wanted,
                ".*'\nor name the Python that has it in PHALANX_PYTHON");

  const std::string version = torch_version(torch);
  const auto fits = [&](const fs::path& library) { return minor_of(library) == minor_of_version(version); };
  const auto library = std::find_if(libraries.begin(), libraries.end(), fits);
  PHALANX_CHECK(library != libraries.end(), Error, libraries.back().string(), " was built for torch ", wanted,
                ", and torch ", version, " is installed in ", torch.string(),
                ". Build the engine for it, in the source folder: ", python,
                " -m pip install --force-reinstall --no-deps .\nor install the torch it was built for: ",
                python, " -m pip install 'torch==", wanted, ".*'");
  return {*library, minor_of(*library), torch, version};
}

EngineLibrary::EngineLibrary(const Engine& engine) : path_(engine.library) {
  const auto load = [&](const std::string& path, int flags) {
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | flags);
    PHALANX_CHECK(handle != nullptr, Error, "cannot load ", path_, " with torch ", engine.torch_version,
                  " of ", engine.torch_root, ": ", ::dlerror(), "\nBuild it for this torch", kReinstall);
    return handle;
  };
  // By absolute path, so that the torch that was checked is the one that is loaded, wherever the engine lies.
  for (const char* name : kTorchLibraries) {
    load(engine.torch_root + "/lib/" + name, RTLD_GLOBAL);
  }
  handle_ = load(path_, RTLD_LOCAL);
}

void* EngineLibrary::symbol(const char* name) const {
  void* address = ::dlsym(handle_, name);
  PHALANX_CHECK(address != nullptr, Error, path_, " has no function ", name,
                ": program and engine are of different versions. Install them together", kReinstall);
  return address;
}

}  // namespace phalanx
