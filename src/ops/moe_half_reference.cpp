#include "ops/expert_choice.h"
#include "ops/experts.h"
#include "ops/moe_half.h"
#include "ops/rms_norm.h"
#include "ops/router.h"

#include <ATen/TensorOperators.h>

namespace phalanx {

MoeResult moe_half_reference(const at::Tensor& x, const MoeWeights& weights, const RouterSpec& spec,
                             double norm_eps, const MoeOptions& options) {
  const at::Tensor n = rms_norm_reference(x, weights.norm, norm_eps);
  const at::Tensor logits = n.to(weights.router.scalar_type()).matmul(weights.router.t());
  const at::Tensor choice = options.replay_indices.defined()
                                ? options.replay_indices
                                : choose_experts(logits.detach(), spec, weights.correction_bias);
  Routing routing = router_reference(logits, spec, choice);
  routing.weights = routing.weights.to(n.scalar_type());
  at::Tensor out = x + experts_reference(n, routing.indices, routing.weights, weights.experts);
  if (weights.shared.has_value()) {
    out = out + gated_mlp_reference(n, *weights.shared);
  }
  return {out, options.want_router_logits ? logits : at::Tensor(),
          group_by_expert_reference(routing.indices, spec.num_experts).counts, routing.indices};
}

}  // namespace phalanx
