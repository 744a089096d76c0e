// The auxiliary loss that keeps experts evenly used (Switch Transformer, equations 4 to 6), over the logits of all
// routers together, as Transformers' load_balancing_loss_func computes it when nothing is padded:
//   E * sum over e of (choices of expert e / rows) * (sum of its softmax scores / rows)
// with the scores rounded to the dtype of the logits, and the sums in fp32 (fp64 for fp64).
//
// Legend: L layers, T tokens, E experts, rows = L * T.
#pragma once
#include "ops/block.h"

#include <cstdint>
#include <tuple>

namespace phalanx {

// Differentiable. router_logits L x [T, E] of one floating dtype -> scalar, fp32 (fp64). Saved: the logits and the
// share of each expert [E]. Throws Error for no logits, logits that differ in dtype or E, and top_k outside [1, E].
at::Tensor load_balancing_loss(const Tensors& router_logits, std::int64_t top_k);

// Device operators.
// logits [T, E] -> choices of each expert [E] and sum of its scores [E], both fp32 (fp64).
std::tuple<at::Tensor, at::Tensor> load_balancing_statistics(const at::Tensor& logits, std::int64_t top_k);
// grad_scores [E] fp32 (fp64), the same for every token -> gradient of the logits [T, E].
at::Tensor load_balancing_backward(const at::Tensor& grad_scores, const at::Tensor& logits);

// Kernels of the device operators.
std::tuple<at::Tensor, at::Tensor> load_balancing_statistics_cpu(const at::Tensor& logits,
                                                                 std::int64_t top_k);
std::tuple<at::Tensor, at::Tensor> load_balancing_statistics_meta(const at::Tensor& logits,
                                                                  std::int64_t top_k);
std::tuple<at::Tensor, at::Tensor> load_balancing_statistics_cuda(const at::Tensor& logits,
                                                                  std::int64_t top_k);
at::Tensor load_balancing_backward_cpu(const at::Tensor& grad_scores, const at::Tensor& logits);
at::Tensor load_balancing_backward_meta(const at::Tensor& grad_scores, const at::Tensor& logits);
at::Tensor load_balancing_backward_cuda(const at::Tensor& grad_scores, const at::Tensor& logits);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
at::Tensor load_balancing_loss_reference(const Tensors& router_logits, std::int64_t top_k);

}  // namespace phalanx
