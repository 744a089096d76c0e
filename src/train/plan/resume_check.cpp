#include "train/plan/resume_check.h"

#include "config/field.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "train/plan/checkpoint_folder.h"

#include <filesystem>

namespace phalanx {
namespace {

// Model and data may have moved: they are known by content.
bool names_a_place(const Field& field) {
  return field.is_list() || field.name == "model" || field.name == "data.chat_template";
}

void check_same_job(const RunConfig& saved, const RunConfig& current, const std::string& checkpoint) {
  std::string differences;
  for (const Field& field : run_config_fields()) {
    const Json before = field.load(saved), now = field.load(current);
    if (field.on_resume == OnResume::kMustAgree && !names_a_place(field) && before != now) {
      differences += concat("\n  ", field.name, ": saved ", before.dump(), ", now ", now.dump());
    }
  }
  PHALANX_CHECK(differences.empty(), ConfigError, checkpoint,
                ": cannot be resumed, because these fields have changed:", differences,
                "\nset them back, or start anew in another output folder");
}

Json read_whole_progress(const std::string& checkpoint) {
  try {
    return read_progress(checkpoint);
  } catch (const IoError& error) {
    throw IoError(error.what() + advice_if_damaged(checkpoint));
  }
}

}  // namespace

std::optional<std::string> checkpoint_to_resume(const RunConfig& config) {
  const std::string& resume = config.checkpoint.resume;
  if (resume == "never") {
    return std::nullopt;
  }
  if (resume != "auto") {
    return find_checkpoint(resume);
  }
  const std::vector<std::string> found = list_checkpoints(config.output + "/checkpoints");
  return found.empty() ? std::nullopt : std::optional(found.back());
}

std::string model_fingerprint(const std::string& model_folder) {
  const std::string text = read_text(model_folder + "/config.json");
  return hex_digest(xxh64(text.data(), text.size()));
}

std::string advice_if_damaged(const std::string& checkpoint) {
  try {
    verify_checkpoint(checkpoint);
    return "";
  } catch (const Error&) {
    const std::string folder = std::filesystem::path(checkpoint).parent_path();
    const std::optional<std::string> older = newest_intact_before(folder, checkpoint);
    return older.has_value() ? concat("; the newest older checkpoint that is whole: --resume ", *older)
                             : "; no older checkpoint is whole: start anew in another output folder";
  }
}

Json begin_resume(const std::string& checkpoint, const RunConfig& config, DataLoader& data) {
  Json progress = read_whole_progress(checkpoint);
  check_same_job(run_config_from_json(progress.at("config"), checkpoint + "/progress.json"), config,
                 checkpoint);
  PHALANX_CHECK(progress.at("model_fingerprint").as_string() == model_fingerprint(config.model), ConfigError,
                config.model, "/config.json: has changed since ", checkpoint,
                " was saved; put the old file back, or start anew in another output folder");
  data.restore(progress.at("data"));
  return progress;
}

}  // namespace phalanx
