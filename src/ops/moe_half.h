// The expert half of a decoder layer: out = x + experts(n) + shared_expert(n), routed by router(n), with n = rms_norm(x); the shared
// expert, which every token passes, where the model has one.
//
// One block. Saved: x, the weights, 1 / rms of each token, router logits [T, E], routing (weights, indices, groups)
// and pre-activations z [R, 2I]; of the shared expert pre-activations [T, 2S] and the scale of each token. n, gathered
// rows and activations are computed again in backward; nothing of size [R, H] is kept.
//
// Legend: T tokens, H hidden, E experts, K experts per token, R = T * K rows, I width of an expert, S of the shared expert.
#pragma once
#include "ops/gated_mlp.h"
#include "ops/recompute.h"
#include "ops/specs.h"
#include "ops/token_dispatch.h"
#include "ops/weights.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace phalanx {

struct MoeWeights {
  at::Tensor norm;    // [H]
  at::Tensor router;  // [E, H], also in fp32 beside narrower weights: the logits are computed in its dtype
  ExpertWeights experts;
  std::optional<GatedMlpWeights> shared = std::nullopt;
  at::Tensor correction_bias = {};  // [E] fp32 (fp64), not differentiable; undefined where the spec has none
};

struct MoeOptions {
  ExpertsImplementation experts = ExpertsImplementation::kAuto;
  bool want_router_logits = false;
  at::Tensor replay_indices;  // [T, K] int32: the choice of experts, or undefined for a free one
  // Where the experts are spread over ranks; `experts` of the weights are then this rank's. Null: all are here.
  std::shared_ptr<const TokenDispatcher> dispatcher = nullptr;
};

struct MoeResult {
  at::Tensor out;             // [T, H]
  at::Tensor router_logits;   // [T, E], differentiable; undefined unless asked for
  at::Tensor expert_counts;   // [E] int64: tokens of this rank that chose each expert
  at::Tensor expert_indices;  // [T, K] int32: what `replay_indices` takes
};

// Differentiable in x and all weights, which share one dtype but for the router. x [T, H]. Throws Error for shapes or dtypes that do
// not fit, a replayed index outside [0, E), and an implementation of the experts that cannot be had.
MoeResult moe_half(const at::Tensor& x, const MoeWeights& weights, const RouterSpec& spec, double norm_eps,
                   const MoeOptions& options = {});

// The same, to be run with the other half of its layer, and what its outputs are.
HalfCall moe_half_call(const at::Tensor& x, const MoeWeights& weights, const RouterSpec& spec,
                       double norm_eps, const MoeOptions& options = {});
MoeResult moe_result(const Tensors& outputs);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
MoeResult moe_half_reference(const at::Tensor& x, const MoeWeights& weights, const RouterSpec& spec,
                             double norm_eps, const MoeOptions& options = {});

}  // namespace phalanx
