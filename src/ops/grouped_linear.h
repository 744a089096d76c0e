// The linear layers of all experts at once: rows sorted by expert, each group times the matrix of its own expert.
//
// Three implementations with the same results:
//   eager       a loop over the experts that have rows, one matrix product for each tile of rows
//   batched_mm  one batched product over the experts, their rows padded to the longest group
//   grouped_mm  ATen's grouped product; not for fp64, and widths must be multiples of 16 bytes
// On the CPU `auto` is eager: its tiles keep all threads busy without a barrier for each expert, and it takes
// every dtype and width. Elsewhere `auto` is grouped_mm, the only one that does not wait for the counts of rows.
//
// Legend: R rows, E experts, N width of the output, M width of the input.
#pragma once
#include "ops/specs.h"

#include <ATen/core/Tensor.h>

namespace phalanx {

// The implementation that runs for expert weights like gate_up [E, 2I, H]: what was asked for, or the choice of
// `auto`. Throws Error where that cannot be had, and names what can.
ExpertsImplementation choose_experts_implementation(ExpertsImplementation wanted, const at::Tensor& gate_up);

// y[r] = weight[e] x[r] for the expert e of row r. x [R, M], weight [E, N, M] of any strides (its transpose turns
// the gradient of y into the one of x), ends [E] int32 with ends[E - 1] = R -> [R, N]. Not kAuto.
at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends,
                          ExpertsImplementation implementation);

// grad_weight[e] = sum over the rows r of e of grad_y[r] x[r]^T. grad_y [R, N], x [R, M] -> [E, N, M], zero for
// an expert without rows. Not kAuto.
at::Tensor grouped_linear_weight_grad(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& ends,
                                      ExpertsImplementation implementation);

// Kernels of the device operators; `implementation` is the enumerator's number.
at::Tensor grouped_linear_cpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends,
                              std::int64_t implementation);
at::Tensor grouped_linear_meta(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends,
                               std::int64_t implementation);
at::Tensor grouped_linear_weight_grad_cpu(const at::Tensor& grad_y, const at::Tensor& x,
                                          const at::Tensor& ends, std::int64_t implementation);
at::Tensor grouped_linear_weight_grad_meta(const at::Tensor& grad_y, const at::Tensor& x,
                                           const at::Tensor& ends, std::int64_t implementation);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
at::Tensor grouped_linear_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends);

}  // namespace phalanx
