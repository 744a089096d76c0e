// The data that a person names: raw files, or folders written by `phalanx prepare`.
#pragma once
#include "config/run_config.h"

#include <string>
#include <vector>

namespace phalanx {

// A folder with a manifest.json.
bool is_prepared(const std::string& path);

// Whether any of the data still has to go through the tokenizer.
bool needs_tokenizer(const DataConfig& data);

// Looks, without Python, for what is surely wrong: a missing, unreadable or empty file, a folder that is no prepared data, a
// record near the start that is not JSON or not an object. Throws ConfigError, IoError with file and line.
void check_data_files(const DataConfig& data);

// `data` with each group of raw files replaced by the folder that `phalanx prepare` made of it, in the user's cache: unchanged
// files are found there again. Throws PythonStepFailed.
DataConfig prepare_data(const DataConfig& data, const std::string& model_folder);

}  // namespace phalanx
