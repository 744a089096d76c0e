#include "phalanx/adamw.h"

#include "core/error.h"
#include "models/auto_model_impl.h"
#include "train/gradient_buckets.h"
#include "train/optimizer.h"
#include "train/step_sums.h"

#include <numeric>

namespace phalanx {
namespace {

OptimizerConfig config_of(const AdamWOptions& options) {
  OptimizerConfig config;
  config.beta1 = options.beta1;
  config.beta2 = options.beta2;
  config.eps = options.eps;
  config.weight_decay = options.weight_decay;
  config.states = options.states;
  return config;
}

Precision precision_of(const ParameterSet& parameters) {
  PHALANX_CHECK(parameters.dtype() == at::kFloat || parameters.dtype() == at::kBFloat16, ConfigError,
                "AdamW: the model is held in ", parameters.dtype(), "; expected float32 or bfloat16");
  return parameters.dtype() == at::kFloat ? Precision::kFp32 : Precision::kBf16Stochastic;
}

}  // namespace

struct AdamW::Impl {
  Impl(ParameterSet& model_parameters, const AdamWOptions& options)
      : parameters(model_parameters),
        optimizer(parameters, config_of(options), precision_of(parameters), options.seed),
        norm(parameters.device()),
        learning_rate(options.learning_rate) {
    if (options.in_backward) {
      buckets = std::make_unique<GradientBuckets>(
          parameters, [this](const std::vector<std::size_t>& members, const Tensors& gradients) {
            update(members, gradients, 1.0);
          });
    }
  }

  void update(const std::vector<std::size_t>& members, const Tensors& gradients, double gradient_scale) {
    norm.add(gradients);
    optimizer.step(members, gradients, learning_rate, gradient_scale, done_steps + 1);
  }

  ParameterSet& parameters;
  Optimizer optimizer;
  NormSum norm, last_norm = norm;  // of the step that is going on, of the last one
  std::unique_ptr<GradientBuckets> buckets;
  double learning_rate;
  std::int64_t done_steps = 0;
};

AdamW::AdamW(AutoModelForCausalLM& model, const AdamWOptions& options)
    : impl_(std::make_unique<Impl>(model.impl_->model.parameters(), options)) {}
AdamW::~AdamW() = default;

void AdamW::step(double gradient_scale) {
  if (impl_->buckets != nullptr) {
    PHALANX_CHECK(gradient_scale == 1.0, ConfigError, "AdamW: gradient_scale is ", gradient_scale,
                  ", but with in_backward the gradients are used up; scale the loss instead");
    impl_->buckets->finish();
  } else {
    GradientAccumulator accumulator(impl_->parameters, 1);
    const Tensors gradients = accumulator.gradients();
    std::vector<std::size_t> all(gradients.size());
    std::iota(all.begin(), all.end(), 0);
    impl_->update(all, gradients, gradient_scale);
    accumulator.clear();
  }
  ++impl_->done_steps;
  impl_->last_norm = impl_->norm;
  impl_->norm = NormSum(impl_->parameters.device());
}

void AdamW::set_learning_rate(double learning_rate) { impl_->learning_rate = learning_rate; }
double AdamW::gradient_norm() const { return impl_->last_norm.value(); }

}  // namespace phalanx
