// RMSNorm: y = weight * (x / sqrt(mean(x^2) + eps)), the normalised value rounded to x's dtype before it is
// multiplied by the weight, as Transformers' Llama-style norms do (Qwen3MoeRMSNorm). Statistics in fp32 (fp64
// for fp64 inputs).
//
// Legend: T tokens (or any rows), H width of a row.
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

namespace phalanx {

// Differentiable. x [..., H], weight [H], both of one floating dtype -> y like x. Saved: x, weight, rstd.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The device operators behind it, and behind every block that normalises its input.
// -> y [T, H] like x, rstd [T] fp32 (fp64 for fp64 x).
std::tuple<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                    double eps);
// grad_y [T, H] -> grad_x [T, H] (plus `residual_grad` [T, H] where given: the gradient that went around the
// norm), grad_weight [H]. The sum over rows has a fixed order.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& x,
                                                     const at::Tensor& weight, const at::Tensor& rstd,
                                                     const std::optional<at::Tensor>& residual_grad);

// Kernels of the device operators.
std::tuple<at::Tensor, at::Tensor> rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& weight,
                                                        double eps);
std::tuple<at::Tensor, at::Tensor> rms_norm_backward_cpu(const at::Tensor& grad_y, const at::Tensor& x,
                                                         const at::Tensor& weight, const at::Tensor& rstd,
                                                         const std::optional<at::Tensor>& residual_grad);
std::tuple<at::Tensor, at::Tensor> rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& weight,
                                                         double eps);
std::tuple<at::Tensor, at::Tensor> rms_norm_backward_cuda(const at::Tensor& grad_y, const at::Tensor& x,
                                                          const at::Tensor& weight, const at::Tensor& rstd,
                                                          const std::optional<at::Tensor>& residual_grad);
std::tuple<at::Tensor, at::Tensor> rms_norm_forward_meta(const at::Tensor& x, const at::Tensor& weight,
                                                         double eps);
std::tuple<at::Tensor, at::Tensor> rms_norm_backward_meta(const at::Tensor& grad_y, const at::Tensor& x,
                                                          const at::Tensor& weight, const at::Tensor& rstd,
                                                          const std::optional<at::Tensor>& residual_grad);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace phalanx
