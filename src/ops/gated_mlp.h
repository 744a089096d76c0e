// A gated MLP: y = s * down(silu(gate(n)) * up(n)), where s = sigmoid(n . w) for each token, or 1. The dense half of a layer, and the
// expert that every token passes beside its chosen ones.
//
// Legend: T tokens, H hidden, I width.
#pragma once
#include "ops/weights.h"

#include <ATen/core/Tensor.h>

namespace phalanx {

struct GatedMlpWeights {
  LinearWeights gate;      // [I, H], no bias
  LinearWeights up;        // [I, H], no bias
  LinearWeights down;      // [H, I], no bias
  at::Tensor output_gate;  // w [1, H]; undefined: s is 1
};

// Throws Error, in the name of `op`, for shapes or dtypes that do not fit n [T, H] and for a bias.
void check_gated_mlp(const char* op, const at::Tensor& n, const GatedMlpWeights& weights);

// Differentiable in n [T, H] and all weights -> [T, H]. Saved: the inputs, z and s.
at::Tensor gated_mlp(const at::Tensor& n, const GatedMlpWeights& weights);

// What blocks are made of.
struct GatedMlpForward {
  at::Tensor out;    // [T, H] residual + y
  at::Tensor z;      // [T, 2I] pre-activations
  at::Tensor scale;  // s [T, 1], undefined without an output gate
};
// Its two steps: z and scale without `out`, then `out`.
GatedMlpForward gated_mlp_pre_activations(const at::Tensor& n, const GatedMlpWeights& weights);
at::Tensor gated_mlp_output(const GatedMlpForward& forward, const GatedMlpWeights& weights,
                            const at::Tensor& residual);
GatedMlpForward gated_mlp_forward(const at::Tensor& n, const GatedMlpWeights& weights,
                                  const at::Tensor& residual);

struct GatedMlpNeeds {
  bool n, gate, up, down, output_gate;
};
struct GatedMlpGrads {
  at::Tensor n;            // [T, H]
  at::Tensor gate, up;     // [I, H]
  at::Tensor down;         // [H, I]
  at::Tensor output_gate;  // [1, H]
};
// Undefined where `needs` is false. n is read only for the gradients of weights other than `down`.
GatedMlpGrads gated_mlp_backward(const at::Tensor& grad_out, const at::Tensor& n,
                                 const GatedMlpForward& forward, const GatedMlpWeights& weights,
                                 const GatedMlpNeeds& needs);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
at::Tensor gated_mlp_reference(const at::Tensor& n, const GatedMlpWeights& weights);

}  // namespace phalanx
