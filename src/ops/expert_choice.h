// Which experts a token goes to, where that is more than the top_k of its scores (DeepSeek-V3, GLM-4.5): experts are chosen by score
// plus a correction bias, from the best groups of experts alone. A group counts by the sum of its two best.
//
// Legend: T tokens, E experts, K experts per token.
#pragma once
#include "ops/specs.h"

#include <ATen/core/Tensor.h>

namespace phalanx {

// logits [T, E], bias [E] fp32 (fp64), undefined without -> indices [T, K] int32, what router_forward takes as its forced choice;
// undefined where the spec asks for no more than the top_k of the scores. Ties go to the lower index. Throws Error for a bias
// that does not fit the spec and groups that do not divide the experts.
at::Tensor choose_experts(const at::Tensor& logits, const RouterSpec& spec, const at::Tensor& bias);

}  // namespace phalanx
