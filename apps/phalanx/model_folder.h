// A model named on the command line, found and read before torch is loaded.
#pragma once
#include "models/spec/model_spec.h"

#include <cstdint>
#include <string>

namespace phalanx {

// The folder of a model given as a folder or a hub id; one that is not in the user's cache is downloaded by the Python step,
// unless HF_HUB_OFFLINE is set. Throws IoError, PythonStepFailed.
std::string find_model(const std::string& name);

// The spec of a found model. Throws ConfigError, IoError.
ModelSpec read_model_spec(const std::string& folder);

// Throws ConfigError unless the folder holds what a tokenizer is made of, with token ids below `vocab_size`.
void check_tokenizer(const std::string& folder, std::int64_t vocab_size);

}  // namespace phalanx
