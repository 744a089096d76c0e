// Engine and torch are found, compared and loaded; whatever is wrong is refused with its cure. The environments are
// folders laid out as pip and `cmake --install` lay them out.
#include "core/engine_library.h"

#include "core/error.h"
#include "core/file.h"
#include "phalanx/version.h"
#include "temporary_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

// Sets an environment variable, or takes it away, until the end of the test.
class Variable {
 public:
  Variable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* before = std::getenv(name)) {
      before_ = before;
    }
    set(value);
  }
  ~Variable() { set(before_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    value ? ::setenv(name_, value->c_str(), 1) : ::unsetenv(name_);
  }

  const char* name_;
  std::optional<std::string> before_;
};

class EngineLibraryTest : public ::testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& text = "") {
    const std::string path = folder_ / name;
    fs::create_directories(parent_directory(path));
    write_file_atomic(path, text);
    return path;
  }

  void put_torch(const std::string& site_packages, const std::string& version) {
    put(site_packages + "/torch/__init__.py");
    put(site_packages + "/torch/version.py", "__all__ = []\n__version__ = '" + version + "'\n");
  }

  std::string refusal() const {
    try {
      find_engine(program());
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  std::string program() const { return folder_ / "bin/phalanx"; }

  TemporaryFolder folder_;
  const std::string site_packages_ = "lib/python3.12/site-packages";
  Variable no_library_{"PHALANX_LIBRARY", std::nullopt};
};

void expect_says(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message << "\ndoes not say: " << part;
}

TEST_F(EngineLibraryTest, FindsThePackageWithTorchAsItsNeighbour) {
  put_torch(site_packages_, "2.11.3+cu130");
  const std::string library = put(site_packages_ + "/phalanx/lib/libphalanx_torch-2.11.so");
  const Engine engine = find_engine(program());
  EXPECT_EQ(engine.library, library);
  EXPECT_EQ(engine.torch_minor, "2.11");
  EXPECT_EQ(engine.torch_root, folder_ / site_packages_ + "/torch");
  EXPECT_EQ(engine.torch_version, "2.11.3");
}

TEST_F(EngineLibraryTest, TakesTheEngineThatFitsTheInstalledTorch) {
  put_torch(site_packages_, "2.11.0");
  put(site_packages_ + "/phalanx/lib/libphalanx_torch-2.9.so");
  put(site_packages_ + "/phalanx/lib/libphalanx_torch-2.11.so");
  put(site_packages_ + "/phalanx/lib/libphalanx_torch-2.12.so");
  EXPECT_EQ(find_engine(program()).torch_minor, "2.11");
}

TEST_F(EngineLibraryTest, AsksThePythonBesideTheProgramForTorch) {
  const Variable no_python("PHALANX_PYTHON", std::nullopt);
  put_torch("elsewhere", "2.11.0");
  put("lib/libphalanx_torch-2.11.so");
  const std::string python = put("bin/python3", "#!/bin/sh\nPYTHONPATH='" + (folder_ / "elsewhere") +
                                                    "' PATH=/usr/bin:/bin:$PATH exec python3 \"$@\"\n");
  fs::permissions(python, fs::perms::owner_all);
  EXPECT_EQ(environment_python(program()), python);
  EXPECT_EQ(find_engine(program()).torch_root, folder_ / "elsewhere/torch");
}

TEST_F(EngineLibraryTest, AnotherMinorVersionIsRefusedWithBothCures) {
  const Variable python("PHALANX_PYTHON", "/opt/python");
  put_torch(site_packages_, "2.12.1+cpu");
  put(site_packages_ + "/phalanx/lib/libphalanx_torch-2.11.so");
  const std::string message = refusal();
  expect_says(message,
              "libphalanx_torch-2.11.so was built for torch 2.11, and torch 2.12.1 is installed in " +
                  (folder_ / site_packages_) + "/torch");
  expect_says(message, "/opt/python -m pip install --force-reinstall --no-deps .");
  expect_says(message, "/opt/python -m pip install 'torch==2.11.*'");
}

TEST_F(EngineLibraryTest, MissingTorchIsRefusedWithTheCure) {
  const Variable python("PHALANX_PYTHON", folder_ / "no-such-python");
  put(site_packages_ + "/phalanx/lib/libphalanx_torch-2.11.so");
  const std::string message = refusal();
  expect_says(message,
              "libphalanx_torch-2.11.so needs torch 2.11, and " + (folder_ / "no-such-python") + " has no");
  expect_says(message, "no-such-python -m pip install 'torch==2.11.*'");
}

TEST_F(EngineLibraryTest, MissingEngineIsRefusedWithFoldersAndCure) {
  const Variable python("PHALANX_PYTHON", "/opt/python");
  put_torch(site_packages_, "2.11.0");
  put(site_packages_ + "/phalanx/lib/libother.so");
  const std::string message = refusal();
  expect_says(message, folder_ / "lib\n");
  expect_says(message, folder_ / site_packages_ + "/phalanx/lib\n");
  expect_says(message, "/opt/python -m pip install .");
}

TEST_F(EngineLibraryTest, NamedLibraryMustExistAndBearTheVersion) {
  {
    const Variable named("PHALANX_LIBRARY", folder_ / "libphalanx_torch-2.11.so");
    expect_says(refusal(), (folder_ / "libphalanx_torch-2.11.so") + ", which does not exist");
  }
  const Variable named("PHALANX_LIBRARY", put("libphalanx_torch.so"));
  expect_says(refusal(), "expected the path of a file libphalanx_torch-<minor version of torch>.so");
}

TEST_F(EngineLibraryTest, TorchWithoutVersionIsRefused) {
  put(site_packages_ + "/torch/version.py", "nothing\n");
  put(site_packages_ + "/phalanx/lib/libphalanx_torch-2.11.so");
  expect_says(refusal(), "torch/version.py: no line __version__");
}

TEST_F(EngineLibraryTest, LoadsTheBuiltEngineWithTheTorchOfTheEnvironment) {
  const EngineLibrary engine(find_engine(this_program()));
  EXPECT_STREQ(engine.function<const char*()>("_ZN7phalanx7versionEv")(), version());
  try {
    engine.function<void()>("phalanx_no_such_function");
    FAIL();
  } catch (const Error& error) {
    expect_says(error.what(), "has no function phalanx_no_such_function");
  }
}

TEST_F(EngineLibraryTest, AFileThatIsNoLibraryIsRefusedWithTheReason) {
  const Engine built = find_engine(this_program());
  const std::string damaged = put("libphalanx_torch-2.11.so", "not a library");
  try {
    EngineLibrary({damaged, built.torch_minor, built.torch_root, built.torch_version});
    FAIL();
  } catch (const Error& error) {
    expect_says(error.what(), "cannot load " + damaged + " with torch 2.");
    expect_says(error.what(), "file too short");
  }
}

}  // namespace
}  // namespace phalanx
