#include "io/hub_cache.h"

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxRefBytes = 1000;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  text.erase(0, text.find_first_not_of(" \t\r\n"));
  return text;
}

// The commit that the cache has for a branch or tag; the revision itself when it has no such reference.
std::string commit_of(const fs::path& repository, const std::string& revision) {
  const fs::path reference = repository / "refs" / revision;
  std::string commit =
      fs::is_regular_file(reference) ? trimmed(read_text(reference.string(), kMaxRefBytes)) : revision;
  PHALANX_CHECK(is_hub_id(commit) && commit.find('/') == std::string::npos, IoError, reference.string(),
                ": holds ", in_quotes(commit, 60), ", expected the name of a commit; remove ",
                repository.string(), " and fetch the model again");
  return commit;
}

}  // namespace

bool is_hub_id(std::string_view text) {
  int slashes = 0;
  char before = '/';
  for (const char c : text) {
    const bool word =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    slashes += c == '/';
    const bool starts_part = before == '/';
    if (!word && !(c == '.' && !starts_part) && !(c == '/' && !starts_part)) {
      return false;
    }
    before = c;
  }
  return slashes <= 1 && before != '/';
}

std::string hub_cache_directory() {
  if (std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) {
    return cache;
  }
  if (const std::string home = environment("HF_HOME"); !home.empty()) {
    return home + "/hub";
  }
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/huggingface/hub";
  }
  return environment("HOME") + "/.cache/huggingface/hub";
}

std::string resolve_model(const std::string& dir_or_id, const std::string& revision) {
  std::error_code error;
  if (fs::is_directory(dir_or_id, error)) {
    return dir_or_id;
  }
  PHALANX_CHECK(!fs::exists(dir_or_id, error), IoError, dir_or_id,
                ": is a file, expected the folder of a model");
  PHALANX_CHECK(is_hub_id(dir_or_id), IoError, in_quotes(dir_or_id),
                ": no such folder, and no hub id (org/name) either; give the folder that holds config.json");
  PHALANX_CHECK(!revision.empty() && revision.front() != '/' && revision.find("..") == std::string::npos,
                IoError, in_quotes(revision), ": is no revision of a model");

  std::string folder_name = "models--" + dir_or_id;
  if (const std::size_t slash = folder_name.find('/'); slash != std::string::npos) {
    folder_name.replace(slash, 1, "--");
  }
  const fs::path repository = fs::path(hub_cache_directory()) / folder_name;
  const std::string cure =
      concat("; fetch it with `hf download ", dir_or_id, revision == "main" ? "" : " --revision " + revision,
             "` or give the folder of a model");
  PHALANX_CHECK(fs::is_directory(repository, error), IoError, in_quotes(dir_or_id),
                ": neither a folder nor in the cache, looked at ", fs::absolute(dir_or_id).string(), " and ",
                repository.string(), cure);
  const fs::path snapshot = repository / "snapshots" / commit_of(repository, revision);
  PHALANX_CHECK(fs::is_regular_file(snapshot / "config.json", error), IoError, in_quotes(dir_or_id),
                ": revision ", in_quotes(revision), " is not whole in the cache, ",
                (snapshot / "config.json").string(), " is missing", cure);
  return snapshot.string();
}

}  // namespace phalanx
