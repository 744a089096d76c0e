// What the micro-batches of a step add up to. It stays on the device until it is asked for, so that nothing waits in between.
#pragma once
#include "models/decoder.h"
#include "ops/block.h"
#include "parallel/mesh.h"
#include "train/metrics.h"

#include <vector>

namespace phalanx {

class StepSums {
 public:
  explicit StepSums(at::Device device);
  void add(const LossOutput& output,
           double share);  // `share` of the micro-batch in the step, for the auxiliary loss

  void sum_over(const ProcessGroup& group);  // collective

  struct Values {
    double loss;  // sum over supervised tokens
    double aux_loss, correct;
  };
  Values values() const;

 private:
  at::Tensor sums_;  // [3] fp64
};

// The norm of gradients that come in parts.
class NormSum {
 public:
  explicit NormSum(at::Device device);
  void add(const Tensors& gradients);
  double value() const;

 private:
  at::Tensor squares_;  // [] fp64
};

// Tokens per expert and layer.
class ExpertLoad {
 public:
  void add(const std::vector<at::Tensor>& counts);
  void sum_over(const ProcessGroup& group);  // collective
  void report(StepMetrics& metrics) const;

 private:
  std::vector<at::Tensor> layers_;
};

}  // namespace phalanx
