// One optimizer step: forward and backward of its micro-batches, the norm of the gradients, the update.
#pragma once
#include "config/run_config.h"
#include "data/data_loader.h"
#include "models/causal_lm.h"
#include "train/optimizer.h"
#include "train/step_sums.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace phalanx {

// The micro-batches of one step on this rank, and the tokens of all ranks.
struct StepBatches {
  std::vector<Batch> batches;
  std::int64_t tokens = 0, supervised_tokens = 0;
  double divisor() const { return static_cast<double>(std::max<std::int64_t>(1, supervised_tokens)); }
};

struct StepOutcome {
  explicit StepOutcome(at::Device device) : sums(device) {}
  StepSums sums;
  ExpertLoad load;
  double grad_norm = 0.0;  // before clipping
};

class TrainingStep {
 public:
  TrainingStep(const RunConfig& config, const CausalLM& model, double aux_loss_coef)
      : config_(config), model_(model), aux_loss_coef_(aux_loss_coef) {}

  // Updates the weights in the manner of config.optimizer.update; `number` counts from 1. Throws Error when loss or gradient
  // are not finite: before any weight is touched, except in_backward.
  StepOutcome run(std::int64_t number, const StepBatches& step, double learning_rate,
                  Optimizer& optimizer) const;

  // `aux_share`: of the micro-batch in the step. `divisor`: supervised tokens of the step.
  LossOutput loss(const Batch& batch, double aux_share, double divisor) const;

 private:
  using Update =
      std::function<void(const std::vector<std::size_t>& members, const Tensors& gradients, double scale)>;
  void forward_backward(const StepBatches& step, StepOutcome& outcome,
                        const std::function<void()>& after_each) const;
  void update_after_backward(std::int64_t number, const StepBatches& step, StepOutcome& outcome,
                             const Update& update) const;
  void update_in_backward(std::int64_t number, const StepBatches& step, StepOutcome& outcome,
                          const Update& update) const;
  double clip_scale(double norm) const;
  void check_finite(std::int64_t number, const StepBatches& step, const StepOutcome& outcome,
                    const Tensors& gradients, const char* consequence) const;

  const RunConfig& config_;
  const CausalLM& model_;
  double aux_loss_coef_;
};

}  // namespace phalanx
