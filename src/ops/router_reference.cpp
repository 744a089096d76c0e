#include "ops/router.h"

#include <ATen/TensorOperators.h>

namespace phalanx {

Routing router_reference(const at::Tensor& logits, const RouterSpec& spec, const at::Tensor& replay_indices) {
  const auto compute = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor wide = logits.to(compute);
  const at::Tensor scores = spec.score == ScoreFunction::kSoftmax ? wide.softmax(-1) : wide.sigmoid();
  // A stable sort keeps the lower index first among equals.
  const at::Tensor order = std::get<1>(scores.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true));
  const at::Tensor indices =
      replay_indices.defined() ? replay_indices.to(at::kLong) : order.slice(1, 0, spec.top_k).contiguous();
  at::Tensor weights = scores.gather(1, indices);
  if (spec.normalize) {
    const double floor = spec.score == ScoreFunction::kSigmoid ? 1e-20 : 0.0;
    weights = weights / (weights.sum(-1, /*keepdim=*/true) + floor);
  }
  return {(weights * spec.scale).to(logits.scalar_type()), indices.to(at::kInt)};
}

}  // namespace phalanx
