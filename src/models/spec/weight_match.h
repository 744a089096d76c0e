// Which tensors of a checkpoint fill which parameters: settled, with every complaint in one error, before a byte is read.
#pragma once
#include "io/hf_checkpoint.h"
#include "models/spec/weight_map.h"

#include <vector>

namespace phalanx {

struct MatchedTensor {
  StoredTensor stored;
  const Placement* placement = nullptr;  // of the map given to match_weights
};

struct WeightMatch {
  std::vector<const WeightForm*>
      forms;                           // for each rule of the map, the form that the checkpoint's names chose
  std::vector<MatchedTensor> tensors;  // every placement of these forms
  std::vector<StoredTensor> carried;   // tensors of other parts, to be written back as they are
};

// Takes for each rule the first form whose tensors are all there. Throws IoError that lists missing, misshaped and surplus tensors
// (the first 20 of each kind, and how many).
//
// A tensor that no form takes and that is not ignored belongs to another part of the checkpoint (multi-token prediction, a vision
// tower, a head for another task) when its name leaves the names of the map before the last component and outside a layer: `mtp.x`,
// `model.visual.y.z`, `model.layers.61.w` of a model with 61 layers. Otherwise it lies in a module that the model runs, which would
// then compute something else than was trained: `lm_head.bias`, `model.layers.0.mlp.experts.128.down_proj.weight` of a model
// with 128 experts; such a tensor is surplus.
WeightMatch match_weights(const WeightMap& map, const HfCheckpoint& checkpoint);

}  // namespace phalanx
