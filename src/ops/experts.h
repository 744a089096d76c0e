// The experts of a Mixture-of-Experts layer: out[t] = sum over k of w[t, k] * down_e(swiglu(gate_up_e(x[t]))), e the
// k-th expert of token t.
//
// The rows of a token are gathered, run through the grouped linear layers and summed per token in order of k.
// Saved are x, the routing and the pre-activations z; gathered rows and activations are computed again in backward,
// so that nothing of size [R, H] outlives the forward pass. The outputs of the experts are not needed for the
// gradient of the weights either: with U = dO W_down, <dO, y> = <U, a> (a the activation).
//
// Legend: T tokens, H hidden, E experts, K experts per token, R = T * K rows, I width of an expert.
#pragma once
#include "ops/permute.h"
#include "ops/specs.h"
#include "ops/weights.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace phalanx {

// Differentiable in x, weights and the experts. x [T, H], indices [T, K] int32, weights [T, K] like x -> [T, H].
// Throws Error for shapes or dtypes that do not fit, an index outside [0, E), and an implementation that cannot be
// had.
at::Tensor experts(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& weights,
                   const ExpertWeights& experts, ExpertsImplementation implementation);

// What a block of experts is made of; `implementation` has been chosen, it is not kAuto.
struct ExpertsForward {
  at::Tensor out;  // [T, H]
  at::Tensor z;    // [R, 2I] pre-activations
};
// residual [T, H], where given, is added to the output.
ExpertsForward experts_forward(const at::Tensor& x, const at::Tensor& weights, const ExpertGroups& groups,
                               const ExpertWeights& experts, const std::optional<at::Tensor>& residual,
                               ExpertsImplementation implementation);

at::Tensor experts_pre_activations(const at::Tensor& x, const ExpertGroups& groups,
                                   const ExpertWeights& experts, ExpertsImplementation implementation);

struct ExpertsNeeds {
  bool x, weights, gate_up, down;
};
struct ExpertsGrads {
  at::Tensor x;        // [T, H]
  at::Tensor weights;  // [T, K] fp32 (fp64 for fp64)
  at::Tensor gate_up;  // [E, 2I, H]
  at::Tensor down;     // [E, H, I]
};
// Undefined where `needs` is false.
ExpertsGrads experts_backward(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weights,
                              const ExpertGroups& groups, const at::Tensor& z, const ExpertWeights& experts,
                              const ExpertsNeeds& needs, ExpertsImplementation implementation);

// Device operator: with w the weight of row r, grad_weights[choices[r]] = <grad_activation[r], activation[r]>, and
// activation[r] is multiplied by w in place. activation, grad_activation [R, I], weights [T, K], choices [R] int32
// -> grad_weights [T, K] fp32 (fp64).
at::Tensor weigh_activation_(at::Tensor activation, const at::Tensor& grad_activation,
                             const at::Tensor& weights, const at::Tensor& choices);
at::Tensor weigh_activation_cpu_(at::Tensor activation, const at::Tensor& grad_activation,
                                 const at::Tensor& weights, const at::Tensor& choices);
at::Tensor weigh_activation_cuda_(at::Tensor activation, const at::Tensor& grad_activation,
                                  const at::Tensor& weights, const at::Tensor& choices);
at::Tensor weigh_activation_meta_(at::Tensor activation, const at::Tensor& grad_activation,
                                  const at::Tensor& weights, const at::Tensor& choices);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
at::Tensor experts_reference(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& weights,
                             const ExpertWeights& experts);

}  // namespace phalanx
