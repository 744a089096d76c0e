// The dense feed-forward half of a decoder layer: out = x + down(silu(gate(n)) * up(n)) with n = rms_norm(x).
//
// One block. Saved: x, the weights, 1 / rms of each token and pre-activations z [T, 2I]; n and the activation are computed again in
// backward.
//
// Legend: T tokens, H hidden, I width.
#pragma once
#include "ops/recompute.h"
#include "ops/weights.h"

#include <ATen/core/Tensor.h>

namespace phalanx {

struct MlpWeights {
  at::Tensor norm;     // [H]
  LinearWeights gate;  // [I, H], no bias
  LinearWeights up;    // [I, H], no bias
  LinearWeights down;  // [H, I], no bias
};

// Differentiable in x and all weights, which share one dtype. x [T, H]. Throws Error for shapes or dtypes that do not fit and for a
// bias.
at::Tensor mlp_half(const at::Tensor& x, const MlpWeights& weights, double norm_eps);

// The same, to be run with the other half of its layer.
HalfCall mlp_half_call(const at::Tensor& x, const MlpWeights& weights, double norm_eps);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
at::Tensor mlp_half_reference(const at::Tensor& x, const MlpWeights& weights, double norm_eps);

}  // namespace phalanx
