// From a training run to a Hugging Face folder.
#pragma once
#include <cstdint>
#include <string>

namespace phalanx {

// `source` is a run folder (its newest checkpoint is taken) or a checkpoint folder; `output` must not exist or be empty. Writes
// the weights in the layout and dtypes of the model the run started from, in files of at most `max_shard_bytes` (a larger tensor has one
// of its own). Throws IoError.
void export_model(const std::string& source, const std::string& output, std::uint64_t max_shard_bytes);

}  // namespace phalanx
