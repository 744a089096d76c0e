#include "ops/load_balancing_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>

namespace phalanx {

at::Tensor load_balancing_loss_reference(const Tensors& router_logits, std::int64_t top_k) {
  const std::int64_t experts = router_logits[0].size(1);
  const auto compute = router_logits[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor choices, score_sum;
  double rows = 0;
  for (const at::Tensor& logits : router_logits) {
    const at::Tensor scores = logits.softmax(-1);
    // A stable sort keeps the lower index first among equals.
    const at::Tensor order = std::get<1>(scores.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true));
    const at::Tensor layer_choices =
        at::bincount(order.slice(1, 0, top_k).flatten(), {}, experts).to(compute);
    const at::Tensor layer_sum = scores.to(compute).sum(0);
    choices = choices.defined() ? choices + layer_choices : layer_choices;
    score_sum = score_sum.defined() ? score_sum + layer_sum : layer_sum;
    rows += static_cast<double>(logits.size(0));
  }
  return (choices / rows * (score_sum / rows)).sum() * static_cast<double>(experts);
}

}  // namespace phalanx
