// Parameters in memory <-> Hugging Face checkpoints on disk, by way of a weight map. Reads and writes run in parallel and go straight
// between file and memory; only a change of dtype or a transposition passes through a small buffer.
#pragma once
#include "core/dtype.h"
#include "core/json.h"
#include "core/thread_pool.h"
#include "io/atomic_directory.h"
#include "io/hf_checkpoint.h"
#include "models/spec/weight_map.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace phalanx {

// The memory of one parameter: on the host, contiguous, row-major.
struct ParameterBuffer {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  void* data = nullptr;
  // Where memory holds a part alone: rows of dimension 0, from `first_row` on. All of them otherwise.
  std::int64_t first_row = 0;
  std::optional<std::int64_t> rows = std::nullopt;
};

// Fills every parameter of the map; `parameters` has a buffer for each, in any order. Of a parameter that is held in part, the
// bytes of that part alone are read. All names, shapes and dtypes are checked before
// the first byte is read. Throws IoError that lists everything that does not fit (see match_weights), and when reading fails.
void load_parameters(const WeightMap& map, const HfCheckpoint& checkpoint,
                     const std::vector<ParameterBuffer>& parameters, ThreadPool& threads);

enum class WeightLayout {
  kSource,    // as the source checkpoint stores each parameter; released without a source
  kReleased,  // the first form of each rule: one tensor per expert
  kMerged,    // one tensor per parameter, under its own name, as Transformers holds it
};

struct SaveModelOptions {
  std::uint64_t max_shard_bytes = kDefaultShardBytes;
  std::optional<Dtype>
      dtype;  // of every parameter; default: as the source stores it, in memory's dtype without a source
  WeightLayout layout = WeightLayout::kSource;
  std::string chat_template;  // a Jinja file that takes the place of the source's, if any
  ExistingFolder existing = ExistingFolder::kRefuse;
};

// Writes a model folder, whole or not at all: weights, config.json, and from `source` (may be null) the tensors of other parts and the
// side files. `config` is written as given, with its dtype replaced when options.dtype is set; where it equals that of the
// source, the source's bytes are kept. Throws IoError.
void save_model_folder(const std::string& folder, const Json& config, const WeightMap& map,
                       const std::vector<ParameterBuffer>& parameters, const HfCheckpoint* source,
                       const SaveModelOptions& options, ThreadPool& threads);

}  // namespace phalanx
