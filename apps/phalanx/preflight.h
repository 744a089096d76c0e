// Everything that can be wrong with a job and be seen without torch or Python.
#pragma once
#include "config/run_config.h"
#include "models/spec/model_spec.h"

#include <string>

namespace phalanx {

struct CheckedModel {
  std::string folder;
  ModelSpec spec;
};

// Model, tokenizer files, data files, and whether they go together with the configuration. Touches nothing. Throws ConfigError,
// IoError; PythonStepFailed when a model cannot be downloaded.
CheckedModel check_inputs(const RunConfig& config);

}  // namespace phalanx
