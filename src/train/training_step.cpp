#include "train/training_step.h"

#include "core/error.h"
#include "ops/linear_cross_entropy.h"
#include "parallel/all_to_all.h"
#include "train/gradient_buckets.h"
#include "train/gradient_sync.h"

#include <ATen/ops/from_blob.h>

#include <cmath>
#include <numeric>

namespace phalanx {
namespace {

// A batch as tensors: tokens and labels on the CPU, where looking at them waits for nothing, the layout where the model is.
struct BatchTensors {
  BatchTensors(const Batch& batch, at::Device device)
      : tokens(copy(batch.tokens)),
        labels(copy(batch.labels)),
        layout(layout_from_lengths(batch.lengths, device)) {}
  static at::Tensor copy(const std::vector<std::int64_t>& values) {
    auto* data = const_cast<std::int64_t*>(values.data());
    return at::from_blob(data, {static_cast<std::int64_t>(values.size())},
                         at::TensorOptions().dtype(at::kLong))
        .clone();
  }
  at::Tensor tokens, labels;  // [T] int64
  SequenceLayout layout;
};

// What a rank computes that has no rows left while others have: their experts may be here. It counts for nothing.
Batch idle_batch() {
  Batch batch;
  batch.tokens = {0};
  batch.labels = {kIgnoredLabel};
  batch.lengths = {1};
  return batch;
}

}  // namespace

LossOutput TrainingStep::loss(const Batch& batch, double aux_share, double divisor) const {
  const BatchTensors tensors(batch.tokens.empty() ? idle_batch() : batch, model_.parameters().device());
  LossOptions options;
  options.decoder.experts = experts_implementation_from_name(config_.train.experts_implementation);
  options.decoder.recompute = recompute_from_name(config_.train.recompute);
  options.decoder.dispatcher = make_dispatcher(model_.mesh());
  options.aux_loss_coef = aux_loss_coef_;
  options.aux_loss_share = aux_share;
  options.loss_divisor = divisor;
  return decoder_loss(model_.spec(), model_.parameters(), tensors.tokens, tensors.labels, tensors.layout,
                      options);
}

StepOutcome TrainingStep::run(std::int64_t number, const StepBatches& step, double learning_rate,
                              Optimizer& optimizer) const {
  StepOutcome outcome(model_.parameters().device());
  const Update update = [&](const std::vector<std::size_t>& members, const Tensors& gradients, double scale) {
    if (step.supervised_tokens > 0) {
      optimizer.step(members, gradients, learning_rate, scale, number);
    }
  };
  if (config_.optimizer.update == "after_backward") {
    update_after_backward(number, step, outcome, update);
  } else {
    update_in_backward(number, step, outcome, update);
  }
  return outcome;
}

void TrainingStep::forward_backward(const StepBatches& step, StepOutcome& outcome,
                                    const std::function<void()>& after_each) const {
  for (const Batch& batch : step.batches) {
    const double share = static_cast<double>(batch.tokens.size()) / static_cast<double>(step.tokens);
    LossOutput output = loss(batch, share, step.divisor());
    output.objective.backward();
    after_each();
    if (batch.tokens.empty()) {
      for (at::Tensor& counts : output.expert_counts) {
        counts = counts.new_zeros(counts.sizes());
      }
    }
    outcome.load.add(output.expert_counts);
    outcome.sums.add(output, share);
  }
}

double TrainingStep::clip_scale(double norm) const {
  const double clip = config_.optimizer.clip_norm;
  return clip > 0.0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

void TrainingStep::update_after_backward(std::int64_t number, const StepBatches& step, StepOutcome& outcome,
                                         const Update& update) const {
  GradientAccumulator accumulator(model_.parameters(), config_.train.accumulation);
  forward_backward(step, outcome, [&] { accumulator.add(); });
  const Tensors gradients = accumulator.gradients();
  outcome.sums.sum_over(model_.mesh().all);
  outcome.load.sum_over(model_.mesh().all);
  outcome.grad_norm = sum_over_ranks(model_.mesh(), model_.parameters(), gradients);
  check_finite(number, step, outcome, gradients, "the weights have not been touched");
  std::vector<std::size_t> all(gradients.size());
  std::iota(all.begin(), all.end(), 0);
  update(all, gradients, clip_scale(outcome.grad_norm));
  accumulator.clear();
}

void TrainingStep::update_in_backward(std::int64_t number, const StepBatches& step, StepOutcome& outcome,
                                      const Update& update) const {
  NormSum norm(model_.parameters().device());
  double scale = 1.0;
  const bool twice = config_.optimizer.update == "in_backward_twice";
  if (twice) {
    GradientBuckets buckets(model_.parameters(),
                            [&](const auto&, const Tensors& gradients) { norm.add(gradients); });
    forward_backward(step, outcome, [&] { buckets.finish(); });
    outcome.grad_norm = norm.value();
    check_finite(number, step, outcome, {}, "the weights have not been touched");
    scale = clip_scale(outcome.grad_norm);
  }
  GradientBuckets buckets(model_.parameters(),
                          [&](const std::vector<std::size_t>& members, const Tensors& gradients) {
                            if (!twice) {
                              norm.add(gradients);
                            }
                            update(members, gradients, scale);
                          });
  StepOutcome again(model_.parameters().device());
  forward_backward(step, twice ? again : outcome, [&] { buckets.finish(); });
  outcome.grad_norm = norm.value();
  check_finite(number, step, outcome, {}, "layers may have been updated with it, but no checkpoint has");
}

void TrainingStep::check_finite(std::int64_t number, const StepBatches& step, const StepOutcome& outcome,
                                const Tensors& gradients, const char* consequence) const {
  const double norm = outcome.grad_norm;
  const double loss = outcome.sums.values().loss / step.divisor();
  if (std::isfinite(loss) && std::isfinite(norm)) {
    return;
  }
  std::string culprit;
  for (std::size_t i = 0; i < gradients.size() && culprit.empty(); ++i) {
    if (!gradients[i].isfinite().all().item<bool>()) {
      culprit = "; the first gradient that is not finite is that of " + model_.parameters().list()[i].name;
    }
  }
  fail("step ", number, ": loss ", loss, ", gradient norm ", norm, culprit, "; ", consequence,
       ". Lower optimizer.learning_rate or optimizer.clip_norm, or look at the data of this step, and resume "
       "from the last checkpoint");
}

}  // namespace phalanx
