// What happens to q and k between their projection and the attention: an RMSNorm over each head (where the model has
// one), then the rotation by position. Computed in fp32 (fp64 for fp64), rounded once.
//
// Legend: T tokens, h query heads, g key/value heads, d head size, D rotary dimensions (D <= d).
#pragma once
#include "ops/rope.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace phalanx {

// q [T, h, d] and k [T, g, d]: views into the fused product of q, k and v serve, only [h, d] must be dense.
// q_norm, k_norm [d]: both or neither. cos, sin [T, D/2] of ops/rope.h.
struct QkNormRopeInputs {
  at::Tensor q, k;
  std::optional<at::Tensor> q_norm, k_norm;
  at::Tensor cos, sin;
  double eps = 1e-6;
};

// Differentiable -> {q, k} contiguous. Saved: the inputs.
std::tuple<at::Tensor, at::Tensor> qk_norm_rope(const QkNormRopeInputs& in);

// The device operators behind it and behind the attention half.
std::tuple<at::Tensor, at::Tensor> qk_norm_rope_forward(const QkNormRopeInputs& in);

// grad_q [T, h, d], grad_k [T, g, d] of the rotated q and k, grad_v [T, g, d] -> grad_qkv [T, (h + 2g) * d], the
// gradients of the projections side by side (grad_v copied), and those of the two norm weights [d] (undefined
// without). The sums over tokens have a fixed order.
std::tuple<at::Tensor, at::Tensor, at::Tensor> qk_norm_rope_backward(const at::Tensor& grad_q,
                                                                     const at::Tensor& grad_k,
                                                                     const at::Tensor& grad_v,
                                                                     const QkNormRopeInputs& in);

// Kernels of the device operators: what torch's dispatcher calls.
using OptionalTensor = std::optional<at::Tensor>;
std::tuple<at::Tensor, at::Tensor> qk_norm_rope_forward_cpu(const at::Tensor& q, const at::Tensor& k,
                                                            const OptionalTensor& q_norm,
                                                            const OptionalTensor& k_norm,
                                                            const at::Tensor& cos, const at::Tensor& sin,
                                                            double eps);
std::tuple<at::Tensor, at::Tensor> qk_norm_rope_forward_cuda(const at::Tensor& q, const at::Tensor& k,
                                                             const OptionalTensor& q_norm,
                                                             const OptionalTensor& k_norm,
                                                             const at::Tensor& cos, const at::Tensor& sin,
                                                             double eps);
std::tuple<at::Tensor, at::Tensor> qk_norm_rope_forward_meta(const at::Tensor& q, const at::Tensor& k,
                                                             const OptionalTensor& q_norm,
                                                             const OptionalTensor& k_norm,
                                                             const at::Tensor& cos, const at::Tensor& sin,
                                                             double eps);
std::tuple<at::Tensor, at::Tensor, at::Tensor> qk_norm_rope_backward_cpu(
    const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v, const at::Tensor& q,
    const at::Tensor& k, const OptionalTensor& q_norm, const OptionalTensor& k_norm, const at::Tensor& cos,
    const at::Tensor& sin, double eps);
std::tuple<at::Tensor, at::Tensor, at::Tensor> qk_norm_rope_backward_cuda(
    const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v, const at::Tensor& q,
    const at::Tensor& k, const OptionalTensor& q_norm, const OptionalTensor& k_norm, const at::Tensor& cos,
    const at::Tensor& sin, double eps);
std::tuple<at::Tensor, at::Tensor, at::Tensor> qk_norm_rope_backward_meta(
    const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v, const at::Tensor& q,
    const at::Tensor& k, const OptionalTensor& q_norm, const OptionalTensor& k_norm, const at::Tensor& cos,
    const at::Tensor& sin, double eps);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
std::tuple<at::Tensor, at::Tensor> qk_norm_rope_reference(const QkNormRopeInputs& in);

}  // namespace phalanx
