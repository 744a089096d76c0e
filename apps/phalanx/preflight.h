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

// Opens prepared data as the engine will, says what of it is used, and checks that a run that goes on has the model and data it was
// started with. `config` names folders. Throws ConfigError, IoError.
void check_run_data(const RunConfig& config, const ModelSpec& spec);

}  // namespace phalanx
