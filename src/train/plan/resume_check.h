// Whether a run may go on from a checkpoint, known before the weights are read.
#pragma once
#include "config/run_config.h"
#include "core/json.h"
#include "data/data_loader.h"

#include <optional>
#include <string>

namespace phalanx {

// By checkpoint.resume: the newest of the run folder, the one named, or none. Throws IoError when the one named is none.
std::optional<std::string> checkpoint_to_resume(const RunConfig& config);

// What a checkpoint keeps of the model folder it was trained from: a change of its config.json shows.
std::string model_fingerprint(const std::string& model_folder);

// Checks that configuration, model and data are those the checkpoint was saved with, and puts `data` where it stopped. Returns
// progress.json. Throws ConfigError that names what has changed, and IoError for a damaged checkpoint.
Json begin_resume(const std::string& checkpoint, const RunConfig& config, DataLoader& data);

// What to do about a checkpoint that could not be loaded: empty when it is whole, so that something else is wrong.
std::string advice_if_damaged(const std::string& checkpoint);

}  // namespace phalanx
