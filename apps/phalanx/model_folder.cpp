#include "model_folder.h"

#include "core/error.h"
#include "core/log.h"
#include "io/hub_cache.h"
#include "python_step.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

bool is_offline() {
  const char* value = std::getenv("HF_HUB_OFFLINE");
  return value != nullptr && std::string_view(value) != "" && std::string_view(value) != "0";
}

}  // namespace

std::string find_model(const std::string& name) {
  try {
    return resolve_model(name);
  } catch (const IoError&) {
    if (!is_hub_id(name) || fs::exists(name) || is_offline()) {
      throw;
    }
  }
  log_info(name, ": not a folder and not in the local cache; downloading it from the hub");
  return run_python_step("phalanx.hub_download", {name});
}

void check_tokenizer_files(const std::string& folder) {
  constexpr std::array kNames = {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"};
  const bool found = std::any_of(kNames.begin(), kNames.end(),
                                 [&](const char* name) { return fs::exists(fs::path(folder) / name); });
  PHALANX_CHECK(found, ConfigError, folder,
                ": the folder holds no tokenizer (tokenizer.json), but the data has to be tokenized; copy "
                "the tokenizer files of "
                "the original model into it, or give data that `phalanx prepare` wrote");
}

}  // namespace phalanx
