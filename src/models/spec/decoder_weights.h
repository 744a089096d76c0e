// How released checkpoints of Llama-like decoders name their weights.
#pragma once
#include "models/spec/model_spec.h"

#include <string>
#include <vector>

namespace phalanx {

// Where a checkpoint keeps the weights of a layer of experts: `module`.experts.E.`gate_up`, stacked in this order, and
// `module`.experts.E.`down`; what else the layer has under `mlp` in memory is under `module` on disk.
struct ExpertNames {
  std::string module = "mlp";
  std::vector<std::string> gate_up = {"gate_proj.weight", "up_proj.weight"};
  std::string down = "down_proj.weight";
};

// Experts one by one under the given names, all else as Transformers' modules call it. The form that Transformers v5 holds, experts
// merged and every name that of its module, is read too.
WeightMap decoder_weights(const ModelSpec& spec, const ExpertNames& names);
WeightMap decoder_weights(const ModelSpec& spec);  // with the names above, which most families have

}  // namespace phalanx
