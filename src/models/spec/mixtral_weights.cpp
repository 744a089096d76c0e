#include "models/spec/decoder_weights.h"

namespace phalanx {

WeightMap mixtral_weights(const ModelSpec& spec) {
  return decoder_weights(
      spec, {.module = "block_sparse_moe", .gate_up = {"w1.weight", "w3.weight"}, .down = "w2.weight"});
}

}  // namespace phalanx
