// Qwen3-MoE: grouped-query attention with RMSNorm on q and k, a softmax router, experts with SwiGLU, dense layers mixed in.
// Source of the mathematics: Transformers' models/qwen3_moe.
#pragma once
#include "models/spec/config_reader.h"
#include "models/spec/model_spec.h"

namespace phalanx {

ModelSpec qwen3_moe_spec(const ConfigReader& config);

// Released layout: one tensor per expert and projection. The merged form that Transformers v5 holds in memory is read too.
WeightMap qwen3_moe_weights(const ModelSpec& spec);

}  // namespace phalanx
