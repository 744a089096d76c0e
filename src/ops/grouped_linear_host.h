// Implementations of ops/grouped_linear.h that know the count of rows of each expert on the host, on any device.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace phalanx {

// Rows [begin, end) of one expert.
struct ExpertRange {
  std::int64_t expert, begin, end;
};
std::vector<ExpertRange> expert_ranges(const at::Tensor& ends);  // waits for a GPU

// batched_mm: one batched product over the experts, their rows padded to the longest group.
at::Tensor batched_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends);
at::Tensor batched_weight_grad(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& ends);

}  // namespace phalanx
