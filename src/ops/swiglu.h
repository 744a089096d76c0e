// SwiGLU: a = silu(gate) * up, of the pre-activations z = [gate, up] of a gated MLP or of experts. Computed
// in fp32 (fp64 for fp64) and rounded once.
//
// Legend: R rows (tokens, or tokens x experts), I width of the MLP or expert.
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

namespace phalanx {

// Differentiable. z [R, 2I] floating, the gate in the first I columns -> a [R, I] of the same dtype. Saved:
// z. Throws Error for another rank or an odd number of columns.
at::Tensor swiglu(const at::Tensor& z);

// The device operators behind it, and behind the blocks of the MLP and of the experts.
// z [R, 2I] -> a [R, I]
at::Tensor swiglu_forward(const at::Tensor& z);
// grad_a [R, I], z [R, 2I] -> grad_z [R, 2I], and, when asked for, a [R, I] again (else undefined): the
// gradient of the down projection needs it, and to compute it in the same pass costs less than to keep it.
std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad_a, const at::Tensor& z,
                                                   bool want_activation);

// Kernels of the device operators.
at::Tensor swiglu_forward_cpu(const at::Tensor& z);
std::tuple<at::Tensor, at::Tensor> swiglu_backward_cpu(const at::Tensor& grad_a, const at::Tensor& z,
                                                       bool want_activation);
at::Tensor swiglu_forward_cuda(const at::Tensor& z);
std::tuple<at::Tensor, at::Tensor> swiglu_backward_cuda(const at::Tensor& grad_a, const at::Tensor& z,
                                                        bool want_activation);
at::Tensor swiglu_forward_meta(const at::Tensor& z);
std::tuple<at::Tensor, at::Tensor> swiglu_backward_meta(const at::Tensor& grad_a, const at::Tensor& z,
                                                        bool want_activation);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
at::Tensor swiglu_reference(const at::Tensor& z);

}  // namespace phalanx
