// AdamW for a loop of one's own:
//
//   phalanx::AdamW optimizer(model, {.learning_rate = 1e-5, .states = "8bit"});
//   model.forward({.tokens = tokens, .labels = labels}).loss.backward();
//   optimizer.step();
//
// Weights in bf16 are rounded stochastically. Weight decay is left out where it does not belong: norm weights and biases.
#pragma once
#include "phalanx/auto_model.h"

#include <cstdint>
#include <memory>
#include <string>

namespace phalanx {

struct AdamWOptions {
  double learning_rate = 1e-5;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::string states = "fp32";  // fp32 | bf16 | 8bit: how the two moments are kept
  // True: a layer is updated as soon as backward has made its gradients, which are dropped then. One backward per step.
  bool in_backward = false;
  std::uint64_t seed = 0;  // of stochastic rounding
};

class AdamW {
 public:
  // `model` must outlive it, in fp32 or bf16. Throws ConfigError.
  explicit AdamW(AutoModelForCausalLM& model, const AdamWOptions& options = {});
  ~AdamW();

  // Updates every parameter by its gradient times `gradient_scale` and drops the gradients; one without a gradient counts as zero.
  // With in_backward the update has happened already, but for parameters that backward did not reach.
  void step(double gradient_scale = 1.0);

  void set_learning_rate(double learning_rate);  // of the steps, and backward passes, that follow
  double gradient_norm() const;                  // of the last step, before scaling; waits for the device

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace phalanx
