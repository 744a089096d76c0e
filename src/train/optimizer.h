// AdamW over the parameters of a model, and what it keeps between steps.
#pragma once
#include "config/run_config.h"
#include "models/parameter_set.h"
#include "ops/adamw.h"
#include "ops/block.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace phalanx {

// How weights are held and updated.
enum class Precision {
  kFp32,            // fp32 weights
  kBf16Master,      // bf16 weights for the model, fp32 master copies for the update
  kBf16Stochastic,  // bf16 weights only, the update rounded stochastically
};

Precision precision_from_name(
    const std::string& name);  // fp32 | bf16_master | bf16_stochastic; throws ConfigError

at::ScalarType weight_type(Precision precision);  // of the weights the model computes with

MomentFormat moment_format_from_name(const std::string& name);  // fp32 | bf16 | 8bit; throws ConfigError

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// The parameters by name, off the tape.
NamedTensors named_weights(const ParameterSet& parameters);

// Sums the gradients of micro-batches. With bf16 weights and several micro-batches the sum is kept in fp32, else torch's own
// accumulation into `grad` is used.
class GradientAccumulator {
 public:
  GradientAccumulator(const ParameterSet& parameters, std::int64_t micro_batches);
  void add();           // after each backward
  Tensors gradients();  // one per parameter, in order; zeros where no gradient has come
  void clear();

 private:
  const ParameterSet& parameters_;
  bool widen_;
  Tensors sums_;
};

class Optimizer {
 public:
  // With kBf16Master the parameters are expected to hold the checkpoint's values in fp32; they are turned into bf16 here.
  Optimizer(ParameterSet& parameters, const OptimizerConfig& config, Precision precision, std::uint64_t seed);

  // Updates the parameters `members` (positions in the set) in place, with one gradient each. How the parameters of a step are spread
  // over calls does not show in the result. `gradient_scale` multiplies the gradients (clipping). `step` counts from 1.
  void step(const std::vector<std::size_t>& members, const Tensors& gradients, double learning_rate,
            double gradient_scale, std::int64_t step);

  // exp_avg.<name> and exp_avg_sq.<name> as config.states says (8 bits: uint8, with exp_avg_scale.<name> and
  // exp_avg_sq_scale.<name>), master.<name> in fp32; writing into them restores the optimizer.
  NamedTensors state() const;

 private:
  AdamWTensors tensors_of(at::ScalarType type, const std::vector<std::size_t>& members,
                          const Tensors& gradients) const;

  ParameterSet& parameters_;
  OptimizerConfig config_;
  Precision precision_;
  std::uint64_t seed_;
  // One per parameter; those of a buffer stay zero, and so does its update.
  Tensors exp_avg_, exp_avg_sq_;
  Tensors exp_avg_scale_, exp_avg_sq_scale_;  // undefined unless moments have 8 bits
  Tensors master_;                            // undefined for parameters that are not narrowed
  std::vector<double> weight_decay_;
};

}  // namespace phalanx
