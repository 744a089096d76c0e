// From a training run to a Hugging Face folder.
#pragma once
#include <string>

namespace phalanx {

// `source` is a run folder (its newest checkpoint is taken) or a checkpoint folder; `output` must not exist or be empty. Writes
// the weights in the layout and dtypes of the model the run started from. Throws IoError.
void export_model(const std::string& source, const std::string& output);

}  // namespace phalanx
