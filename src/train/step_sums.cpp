#include "train/step_sums.h"

#include "ops/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace phalanx {

StepSums::StepSums(at::Device device)
    : sums_(at::zeros({3}, at::TensorOptions().dtype(at::kDouble).device(device))) {}

void StepSums::add(const LossOutput& output, double share) {
  const at::NoGradGuard no_grad;
  sums_[0].add_(output.loss_sum);
  if (output.aux_loss.defined()) {
    sums_[1].add_(output.aux_loss, share);
  }
  sums_[2].add_(output.correct.sum());
}

void StepSums::sum_over(const ProcessGroup& group) { all_reduce_(group, {sums_}); }

StepSums::Values StepSums::values() const {
  const at::Tensor host = sums_.cpu();
  const auto* value = host.const_data_ptr<double>();
  return {value[0], value[1], value[2]};
}

NormSum::NormSum(at::Device device)
    : squares_(at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device))) {}

void NormSum::add(const Tensors& gradients) {
  const at::NoGradGuard no_grad;
  squares_.add_(global_norm(gradients).to(at::kDouble).square());
}

double NormSum::value() const { return std::sqrt(squares_.item<double>()); }

void ExpertLoad::add(const std::vector<at::Tensor>& counts) {
  layers_.resize(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    layers_[i] = layers_[i].defined() ? layers_[i] + counts[i] : counts[i];
  }
}

void ExpertLoad::sum_over(const ProcessGroup& group) { all_reduce_(group, layers_); }

void ExpertLoad::report(StepMetrics& metrics) const {
  if (layers_.empty()) {
    return;
  }
  const at::Tensor all = at::stack(layers_).cpu();  // [L, E]
  for (std::int64_t i = 0; i < all.size(0); ++i) {
    const at::Tensor layer = all[i];
    const double mean = layer.sum().item<double>() / static_cast<double>(layer.numel());
    metrics.expert_load = std::max(metrics.expert_load, layer.max().item<double>() / std::max(mean, 1e-9));
    metrics.dead_experts += (layer == 0).sum().item<std::int64_t>();
  }
}

}  // namespace phalanx
