// The products of the experts with the activation inside, on Hopper GPUs in bf16 (kernels/grouped_gemm): what
// `experts_implementation` phalanx runs instead of a grouped product and ops/swiglu.h one after the other.
//
// Legend: T tokens, K experts per token, R = T * K rows sorted by expert, E experts, H hidden, I width of an expert.
#pragma once
#include "ops/permute.h"

#include <ATen/core/Tensor.h>

#include <tuple>

namespace phalanx {

// Whether this engine holds the kernels and the GPU runs them.
bool has_hopper_kernels(at::Device device);

// x [R, H], gate_up [E, 2I, H], ends [E] -> pre-activations z [R, 2I] and activation silu(gate) * up [R, I].
std::tuple<at::Tensor, at::Tensor> grouped_linear_swiglu(const at::Tensor& x, const at::Tensor& gate_up,
                                                         const at::Tensor& ends);

// Back through down projection and activation. With w the weight of row r and U = grad_out[r] down: the gradient of z is
// that of w * swiglu(z) against U.
struct SwigluLinearGrads {
  at::Tensor z;                    // [R, 2I], with w
  at::Tensor weighted_activation;  // [R, I]: w * swiglu(z)
  at::Tensor weights;              // [T, K] fp32: <U, swiglu(z)>
};
// grad_out [R, H] without w, down [E, H, I], z [R, 2I], weights [T, K].
SwigluLinearGrads grouped_linear_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& down,
                                                 const at::Tensor& z, const at::Tensor& weights,
                                                 const ExpertGroups& groups);

// Kernels of the device operators.
std::tuple<at::Tensor, at::Tensor> grouped_linear_swiglu_cuda(const at::Tensor& x, const at::Tensor& gate_up,
                                                              const at::Tensor& ends);
std::tuple<at::Tensor, at::Tensor> grouped_linear_swiglu_meta(const at::Tensor& x, const at::Tensor& gate_up,
                                                              const at::Tensor& ends);
std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_linear_swiglu_backward_cuda(
    const at::Tensor& grad_out, const at::Tensor& down, const at::Tensor& z, const at::Tensor& weights,
    const at::Tensor& ends, const at::Tensor& choices, const at::Tensor& rows);
std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_linear_swiglu_backward_meta(
    const at::Tensor& grad_out, const at::Tensor& down, const at::Tensor& z, const at::Tensor& weights,
    const at::Tensor& ends, const at::Tensor& choices, const at::Tensor& rows);

}  // namespace phalanx
