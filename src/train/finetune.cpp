#include "core/error.h"
#include "core/json.h"
#include "phalanx/trainer.h"
#include "train/trainer.h"

#include <filesystem>

namespace phalanx {

FinetuneEnd finetune(const std::string& recipe_json) {
  const std::string where = "the recipe";
  const RunConfig config = run_config_from_json(Json::parse(recipe_json, where), where);
  const auto require = [&](bool is_set, const char* field) {
    PHALANX_CHECK(is_set, ConfigError, where, ": ", field, " is not set; a training run needs it");
  };
  require(!config.model.empty(), "model");
  require(!config.data.train.empty(), "data.train");
  require(!config.output.empty(), "output");
  Trainer trainer(config);
  std::filesystem::create_directories(config.output);
  return trainer.run() == RunEnd::kFinished ? FinetuneEnd::kFinished : FinetuneEnd::kInterrupted;
}

}  // namespace phalanx
