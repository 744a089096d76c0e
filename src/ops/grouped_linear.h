// The linear layers of all experts at once: rows sorted by expert, each group times the matrix of its own expert.
//
// Implementations with the same results:
//   eager       a loop over the experts that have rows, one matrix product for each (on the CPU, for each tile of rows)
//   batched_mm  one batched product over the experts, their rows padded to the longest group
//   grouped_mm  ATen's grouped product; not for fp64, and widths must be multiples of 16 bytes
//   phalanx     own kernels for Hopper GPUs (kernels/grouped_gemm): bf16, widths multiples of 8, at most 512 experts; the
//               activation and its gradient run inside the products (ops/fused_experts.h)
// eager and batched_mm need the counts of rows on the host: on a GPU they wait for it.
//
// Legend: R rows, E experts, N width of the output, M width of the input.
#pragma once
#include "ops/specs.h"

#include <ATen/core/Tensor.h>

#include <string>

namespace phalanx {

// What the choice of an implementation depends on.
struct ExpertsSituation {
  bool on_cpu = true;
  bool own_kernels = false;  // a Hopper GPU and an engine that holds kernels for it
  at::ScalarType dtype = at::kFloat;
  std::int64_t experts = 0, hidden = 0, width = 0;
};
ExpertsSituation experts_situation(const at::Tensor& gate_up);

// The implementation that runs, and why:
//   on the CPU `auto` is eager: its tiles keep all threads busy without a barrier for each expert, and it takes every dtype
//   and width; on a GPU it is phalanx where both widths are multiples of 64 (those tiles waste nothing), else grouped_mm,
//   else eager.
// Throws Error where what was asked for cannot be had, and names what can.
struct ExpertsChoice {
  ExpertsImplementation implementation;
  std::string reason;
};
ExpertsChoice choose_experts_implementation(ExpertsImplementation wanted, const ExpertsSituation& situation);
// The same for expert weights like gate_up [E, 2I, H].
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
at::Tensor grouped_linear_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends,
                               std::int64_t implementation);
at::Tensor grouped_linear_meta(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends,
                               std::int64_t implementation);
at::Tensor grouped_linear_weight_grad_cpu(const at::Tensor& grad_y, const at::Tensor& x,
                                          const at::Tensor& ends, std::int64_t implementation);
at::Tensor grouped_linear_weight_grad_cuda(const at::Tensor& grad_y, const at::Tensor& x,
                                           const at::Tensor& ends, std::int64_t implementation);
at::Tensor grouped_linear_weight_grad_meta(const at::Tensor& grad_y, const at::Tensor& x,
                                           const at::Tensor& ends, std::int64_t implementation);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
at::Tensor grouped_linear_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends);

}  // namespace phalanx
