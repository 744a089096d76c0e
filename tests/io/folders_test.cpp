#include "io/atomic_directory.h"
#include "io/hub_cache.h"
#include "raw_safetensors.h"
#include "temporary_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

TEST(AtomicDirectory, AppearsWholeOrNotAtAll) {
  const TemporaryFolder folder;
  {
    AtomicDirectory unfinished(folder / "runs/out");
    write_file_atomic(unfinished / "f", "x");
    EXPECT_FALSE(fs::exists(folder / "runs/out"));
  }
  EXPECT_TRUE(fs::is_empty(folder / "runs"));
  AtomicDirectory finished(folder / "runs/out/");
  write_file_atomic(finished / "f", "x");
  finished.commit();
  EXPECT_EQ(read_text(folder / "runs/out/f"), "x");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "runs"), {}), 1);
}

TEST(AtomicDirectory, RefusesWhatIsThere) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "out");
  write_file_atomic(folder / "out/old", "x");
  write_file_atomic(folder / "file", "x");
  EXPECT_PRED2(contains, io_error([&] { AtomicDirectory out(folder / "out"); }),
               folder / "out: exists already and is not empty");
  EXPECT_PRED2(contains, io_error([&] { AtomicDirectory out(folder / "file"); }), "exists already");
  EXPECT_PRED2(contains, io_error([&] { AtomicDirectory out(folder / "file/out"); }), "cannot be created");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"file", "out"}));
}

TEST(AtomicDirectory, AnEmptyFolderMayBeFilled) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "out");
  AtomicDirectory out(folder / "out");
  write_file_atomic(out / "new", "x");
  out.commit();
  EXPECT_TRUE(fs::exists(folder / "out/new"));
}

TEST(AtomicDirectory, RefusesWhatAppearedMeanwhile) {
  const TemporaryFolder folder;
  {
    AtomicDirectory out(folder / "out");
    fs::create_directory(folder / "out");
    write_file_atomic(folder / "out/other", "x");
    EXPECT_PRED2(contains, io_error([&] { out.commit(); }), "cannot be put in place");
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out"});
  EXPECT_TRUE(fs::exists(folder / "out/other"));
}

TEST(AtomicDirectory, ReplacesOnlyWithCommit) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "out");
  write_file_atomic(folder / "out/old", "x");
  { AtomicDirectory unfinished(folder / "out", ExistingFolder::kReplace); }
  EXPECT_TRUE(fs::exists(folder / "out/old"));
  AtomicDirectory out(folder / "out", ExistingFolder::kReplace);
  write_file_atomic(out / "new", "x");
  out.commit();
  EXPECT_FALSE(fs::exists(folder / "out/old"));
  EXPECT_TRUE(fs::exists(folder / "out/new"));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out"});
}

// Sets variables of the environment for one test.
class Environment {
 public:
  explicit Environment(std::vector<std::pair<std::string, std::string>> values) {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value ? std::optional<std::string>(value) : std::nullopt);
      ::unsetenv(name);
    }
    for (const auto& [name, value] : values) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
  }

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

TEST(HubCache, LooksWhereHuggingFaceDoes) {
  const auto directory = [](std::vector<std::pair<std::string, std::string>> values) {
    const Environment environment(std::move(values));
    return hub_cache_directory();
  };
  EXPECT_EQ(directory({{"HOME", "/h"}}), "/h/.cache/huggingface/hub");
  EXPECT_EQ(directory({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}), "/x/huggingface/hub");
  EXPECT_EQ(directory({{"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "/hf"}}), "/hf/hub");
  EXPECT_EQ(directory({{"HF_HOME", "/hf"}, {"HF_HUB_CACHE", "/c"}}), "/c");
}

TEST(HubCache, ResolvesAnIdThroughItsReference) {
  const TemporaryFolder cache;
  const Environment environment({{"HF_HUB_CACHE", cache.path()}});
  const std::string repository = cache / "models--org--name.v1";
  fs::create_directories(repository + "/snapshots/abc123");
  fs::create_directories(repository + "/refs");
  write_file_atomic(repository + "/refs/main", "abc123\n");
  EXPECT_PRED2(contains, io_error([] { resolve_model("org/name.v1"); }),
               "/snapshots/abc123/config.json is missing");
  write_file_atomic(repository + "/snapshots/abc123/config.json", "{}");
  EXPECT_EQ(resolve_model("org/name.v1"), repository + "/snapshots/abc123");
  EXPECT_EQ(resolve_model("org/name.v1", "abc123"), repository + "/snapshots/abc123");
  EXPECT_PRED2(contains, io_error([] { resolve_model("org/name.v1", "dev"); }),
               "hf download org/name.v1 --revision dev");
  EXPECT_PRED2(contains, io_error([] { resolve_model("org/name.v1", "../../x"); }), "is no revision");
  write_file_atomic(repository + "/refs/main", "../../../elsewhere");
  EXPECT_PRED2(contains, io_error([] { resolve_model("org/name.v1"); }), "expected the name of a commit");
}

TEST(HubCache, NamesThePlacesLookedAtAndTheCure) {
  const TemporaryFolder cache;
  const Environment environment({{"HF_HUB_CACHE", cache.path()}});
  const std::string message = io_error([] { resolve_model("org/absent"); });
  EXPECT_PRED2(contains, message, fs::absolute("org/absent").string());
  EXPECT_PRED2(contains, message, cache / "models--org--absent");
  EXPECT_PRED2(contains, message, "hf download org/absent");
  for (const char* name : {"", "a/b/c", "/absent", "../absent", "a//b", "a/", ".a", "a b", "org/.x"}) {
    EXPECT_PRED2(contains, io_error([&] { resolve_model(name); }), "no such folder, and no hub id") << name;
  }
}

TEST(HubCache, AFolderGoesBeforeAnId) {
  const TemporaryFolder folder;
  EXPECT_EQ(resolve_model(folder.path()), folder.path());
  write_file_atomic(folder / "f", "x");
  EXPECT_PRED2(contains, io_error([&] { resolve_model(folder / "f"); }),
               "is a file, expected the folder of a model");
}

}  // namespace
}  // namespace phalanx
