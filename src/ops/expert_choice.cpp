#include "ops/expert_choice.h"

#include "core/error.h"

#include <ATen/TensorOperators.h>

#include <limits>

namespace phalanx {
namespace {

void check_arguments(const at::Tensor& logits, const RouterSpec& spec, const at::Tensor& bias) {
  PHALANX_CHECK(bias.defined() == spec.correction_bias, Error,
                "router: a correction bias must be given exactly when the spec has one");
  PHALANX_CHECK(!bias.defined() || bias.sizes() == at::IntArrayRef({spec.num_experts}), Error,
                "router: the correction bias has shape ", bias.sizes(), "; expected [", spec.num_experts,
                "]");
  PHALANX_CHECK(logits.dim() == 2 && logits.size(1) == spec.num_experts, Error, "router: logits have shape ",
                logits.sizes(), "; expected [tokens, ", spec.num_experts, "]");
  PHALANX_CHECK(spec.num_groups >= 1 && spec.num_experts % spec.num_groups == 0 && spec.top_groups >= 1 &&
                    spec.top_groups <= spec.num_groups,
                Error, "router: ", spec.top_groups, " of ", spec.num_groups, " groups of ", spec.num_experts,
                " experts; the groups must divide the experts");
}

// The best along the last dimension, equals in order of their index.
at::Tensor best(const at::Tensor& values, std::int64_t count) {
  return std::get<1>(values.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true)).slice(-1, 0, count);
}

// scores [T, E] with those outside the best groups at minus infinity.
at::Tensor of_best_groups(const at::Tensor& scores, const RouterSpec& spec) {
  const at::Tensor groups = scores.unflatten(1, {spec.num_groups, -1});  // [T, groups, E / groups]
  const std::int64_t counted = std::min<std::int64_t>(2, groups.size(2));
  const at::Tensor group_scores = std::get<0>(groups.topk(counted, -1)).sum(-1);  // [T, groups]
  at::Tensor outside = scores.new_ones(group_scores.sizes(), scores.options().dtype(at::kBool));
  outside.scatter_(1, best(group_scores, spec.top_groups), 0);
  return groups.masked_fill(outside.unsqueeze(-1), -std::numeric_limits<double>::infinity()).flatten(1);
}

}  // namespace

at::Tensor choose_experts(const at::Tensor& logits, const RouterSpec& spec, const at::Tensor& bias) {
  check_arguments(logits, spec, bias);
  if (!spec.correction_bias && spec.num_groups == 1) {
    return {};
  }
  const auto compute = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor wide = logits.to(compute);
  at::Tensor scores = spec.score == ScoreFunction::kSoftmax ? wide.softmax(-1) : wide.sigmoid();
  if (bias.defined()) {
    scores = scores + bias;
  }
  if (spec.num_groups > 1) {
    scores = of_best_groups(scores, spec);
  }
  return best(scores, spec.top_k).to(at::kInt).contiguous();
}

}  // namespace phalanx
