// A model named on the command line, found before torch is loaded.
#pragma once
#include <string>

namespace phalanx {

// The folder of a model given as a folder or a hub id; one that is not in the user's cache is downloaded by the Python step,
// unless HF_HUB_OFFLINE is set. Throws IoError, PythonStepFailed.
std::string find_model(const std::string& name);

// Throws ConfigError unless the folder holds what a tokenizer is made of.
void check_tokenizer_files(const std::string& folder);

}  // namespace phalanx
