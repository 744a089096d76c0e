#include "ops/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>

namespace phalanx {

LinearCrossEntropyResult linear_cross_entropy_reference(const at::Tensor& hidden, const at::Tensor& weight,
                                                        const at::Tensor& labels,
                                                        const at::Tensor& token_weights) {
  const auto statistics = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor logits = hidden.matmul(weight.t()).to(statistics);  // [T, V]
  const at::Tensor supervised = labels.ne(kIgnoredLabel);
  const at::Tensor targets = labels.clamp_min(0).unsqueeze(1);
  const at::Tensor log_probabilities = logits.log_softmax(-1);
  const at::Tensor loss = -log_probabilities.gather(1, targets).squeeze(1) * supervised.to(statistics);
  LinearCrossEntropyResult result;
  result.loss_sum = (token_weights.defined() ? loss * token_weights : loss).sum();
  result.token_loss = loss.detach();
  result.correct = logits.argmax(-1).eq(labels);
  const at::Tensor entropy = -(log_probabilities.exp() * log_probabilities).sum(-1);
  result.entropy = (entropy * supervised.to(statistics)).detach();
  return result;
}

}  // namespace phalanx
