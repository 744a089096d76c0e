#include "ops/grouped_linear_host.h"

#include <ATen/ops/bmm_ops.h>

#include <algorithm>

namespace phalanx {
namespace {

// Copies between the sorted rows [R, M] and the padded [E, longest, M] whose other rows are zero.
at::Tensor pad(const at::Tensor& x, const std::vector<ExpertRange>& groups) {
  std::int64_t longest = 0;
  for (const ExpertRange& group : groups) {
    longest = std::max(longest, group.end - group.begin);
  }
  at::Tensor padded = x.new_zeros({static_cast<std::int64_t>(groups.size()), longest, x.size(1)});
  for (const ExpertRange& group : groups) {
    const std::int64_t count = group.end - group.begin;
    padded.select(0, group.expert).narrow(0, 0, count).copy_(x.narrow(0, group.begin, count));
  }
  return padded;
}

at::Tensor unpad(const at::Tensor& padded, const std::vector<ExpertRange>& groups) {
  at::Tensor y = padded.new_empty({groups.back().end, padded.size(2)});
  for (const ExpertRange& group : groups) {
    const std::int64_t count = group.end - group.begin;
    y.narrow(0, group.begin, count).copy_(padded.select(0, group.expert).narrow(0, 0, count));
  }
  return y;
}

}  // namespace

std::vector<ExpertRange> expert_ranges(const at::Tensor& ends_in) {
  const at::Tensor ends = ends_in.cpu();
  const auto* end = ends.const_data_ptr<std::int32_t>();
  std::vector<ExpertRange> groups;
  std::int64_t begin = 0;
  for (std::int64_t expert = 0; expert < ends.numel(); ++expert) {
    groups.push_back({expert, begin, end[expert]});
    begin = end[expert];
  }
  return groups;
}

at::Tensor batched_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends) {
  const std::vector<ExpertRange> groups = expert_ranges(ends);
  return unpad(at::_ops::bmm::call(pad(x, groups), weight.transpose(1, 2)), groups);
}

at::Tensor batched_weight_grad(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& ends) {
  const std::vector<ExpertRange> groups = expert_ranges(ends);
  return at::_ops::bmm::call(pad(grad_y, groups).transpose(1, 2), pad(x, groups));
}

}  // namespace phalanx
