#include "model_folder.h"

#include "core/advice.h"
#include "core/error.h"
#include "core/json.h"
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

// Of the vocabulary and the tokens added to it; -1 when there is none.
std::int64_t largest_token_id(const Json& tokenizer) {
  std::int64_t largest = -1;
  const auto consider = [&](const Json* id) {
    if (id != nullptr && id->is_integer()) {
      largest = std::max(largest, id->as_integer());
    }
  };
  const Json* model = tokenizer.find("model");
  const Json* vocabulary = model == nullptr ? nullptr : model->find("vocab");
  if (vocabulary != nullptr && vocabulary->is_object()) {  // token: id
    for (const auto& [token, id] : vocabulary->as_object()) {
      consider(&id);
    }
  } else if (vocabulary != nullptr && vocabulary->is_array()) {  // unigram: the place is the id
    largest = static_cast<std::int64_t>(vocabulary->as_array().size()) - 1;
  }
  const Json* added = tokenizer.find("added_tokens");
  if (added != nullptr && added->is_array()) {
    for (const Json& token : added->as_array()) {
      consider(token.find("id"));
    }
  }
  return largest;
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

ModelSpec read_model_spec(const std::string& folder) {
  return with_advice("correct the file, or copy it from the original model again",
                     [&] { return load_model_spec(folder); });
}

void check_tokenizer(const std::string& folder, std::int64_t vocab_size) {
  constexpr std::array kNames = {"tokenizer.json", "tokenizer.model", "vocab.json"};
  const bool found = std::any_of(kNames.begin(), kNames.end(),
                                 [&](const char* name) { return fs::exists(fs::path(folder) / name); });
  PHALANX_CHECK(found, ConfigError, folder,
                ": the folder holds no tokenizer (tokenizer.json), but the data has to be tokenized; copy "
                "the tokenizer files of "
                "the original model into it, or give data that `phalanx prepare` wrote");
  const std::string path = fs::path(folder) / "tokenizer.json";
  if (!fs::exists(path)) {
    return;  // the older formats are read by the Python step
  }
  const std::int64_t largest = with_advice("copy the file from the original model again",
                                           [&] { return largest_token_id(Json::parse_file(path)); });
  PHALANX_CHECK(largest < vocab_size, ConfigError, path, ": the largest token id is ", largest,
                ", outside the vocabulary of config.json (vocab_size ", vocab_size,
                "); copy the tokenizer that belongs to the model");
}

}  // namespace phalanx
