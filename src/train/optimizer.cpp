#include "train/optimizer.h"

#include "core/error.h"
#include "core/moment_code.h"
#include "ops/adamw.h"

#include <ATen/core/grad_mode.h>

namespace phalanx {

Precision precision_from_name(const std::string& name) {
  if (name == "fp32") return Precision::kFp32;
  if (name == "bf16_master") return Precision::kBf16Master;
  if (name == "bf16_stochastic") return Precision::kBf16Stochastic;
  fail<ConfigError>("train.precision is \"", name, "\"; it must be fp32, bf16_master or bf16_stochastic");
}

at::ScalarType weight_type(Precision precision) {
  return precision == Precision::kFp32 ? at::kFloat : at::kBFloat16;
}

MomentFormat moment_format_from_name(const std::string& name) {
  if (name == "fp32") return MomentFormat::kFp32;
  if (name == "bf16") return MomentFormat::kBf16;
  if (name == "8bit") return MomentFormat::kEightBit;
  fail<ConfigError>("optimizer.states is \"", name, "\"; it must be fp32, bf16 or 8bit");
}

NamedTensors named_weights(const ParameterSet& parameters) {
  NamedTensors result;
  for (const Parameter& parameter : parameters.list()) {
    result.emplace_back(parameter.name, parameter.tensor.detach());
  }
  return result;
}

GradientAccumulator::GradientAccumulator(const ParameterSet& parameters, std::int64_t micro_batches)
    : parameters_(parameters),
      widen_(micro_batches > 1 && parameters.list().front().tensor.scalar_type() == at::kBFloat16) {}

void GradientAccumulator::add() {
  if (!widen_) {
    return;
  }
  const at::NoGradGuard no_grad;
  sums_.resize(parameters_.list().size());
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    at::Tensor& gradient = parameters_.list()[i].tensor.mutable_grad();
    if (gradient.defined()) {
      sums_[i] = sums_[i].defined() ? sums_[i].add_(gradient) : gradient.to(at::kFloat);
      gradient.reset();
    }
  }
}

Tensors GradientAccumulator::gradients() {
  Tensors result;
  for (std::size_t i = 0; i < parameters_.list().size(); ++i) {
    const at::Tensor& parameter = parameters_.list()[i].tensor;
    const at::Tensor gradient = widen_ ? sums_.at(i) : parameter.grad();
    result.push_back(gradient.defined() ? gradient : parameter.detach().new_zeros(parameter.sizes()));
  }
  return result;
}

void GradientAccumulator::clear() {
  sums_.clear();
  for (const Parameter& parameter : parameters_.list()) {
    parameter.tensor.mutable_grad().reset();
  }
}

namespace {

at::ScalarType moment_type(MomentFormat format) {
  switch (format) {
    case MomentFormat::kFp32:
      return at::kFloat;
    case MomentFormat::kBf16:
      return at::kBFloat16;
    case MomentFormat::kEightBit:
      return at::kByte;
  }
  fail("no such format of moments");
}

}  // namespace

Optimizer::Optimizer(ParameterSet& parameters, const OptimizerConfig& config, Precision precision,
                     std::uint64_t seed)
    : parameters_(parameters), config_(config), precision_(precision), seed_(seed) {
  const at::NoGradGuard no_grad;
  const MomentFormat format = moment_format_from_name(config.states);
  for (Parameter& parameter : parameters.list()) {
    const at::Tensor& tensor = parameter.tensor;
    const auto options = tensor.options().dtype(moment_type(format)).requires_grad(false);
    for (Tensors* moments : {&exp_avg_, &exp_avg_sq_}) {
      moments->push_back(tensor.new_zeros(tensor.sizes(), options));
    }
    for (Tensors* scales : {&exp_avg_scale_, &exp_avg_sq_scale_}) {
      const bool scaled = format == MomentFormat::kEightBit;
      scales->push_back(scaled ? tensor.new_zeros({moment_blocks(tensor.numel())}, options) : at::Tensor());
    }
    weight_decay_.push_back(parameter.decay ? config.weight_decay : 0.0);
    const bool narrowed = precision == Precision::kBf16Master && !parameter.fp32;
    master_.push_back(narrowed ? parameter.tensor.detach() : at::Tensor());
  }
  if (precision == Precision::kBf16Master) {
    parameters = parameters.to(at::kBFloat16, parameters.device());
  }
}

void Optimizer::step(const std::vector<std::size_t>& members, const Tensors& gradients, double learning_rate,
                     double gradient_scale, std::int64_t step) {
  const at::NoGradGuard no_grad;
  AdamWStep settings;
  settings.learning_rate = learning_rate;
  settings.beta1 = config_.beta1;
  settings.beta2 = config_.beta2;
  settings.eps = config_.eps;
  settings.step = step;
  settings.gradient_scale = gradient_scale;
  settings.seed = seed_;
  // Parameters held in fp32 beside bf16 ones take neither master copies nor stochastic rounding.
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    settings.stochastic_rounding = precision_ == Precision::kBf16Stochastic && type == at::kBFloat16;
    adamw_(tensors_of(type, members, gradients), settings);
  }
}

AdamWTensors Optimizer::tensors_of(at::ScalarType type, const std::vector<std::size_t>& members,
                                   const Tensors& gradients) const {
  AdamWTensors tensors;
  for (std::size_t member = 0; member < members.size(); ++member) {
    const std::size_t i = members[member];
    const at::Tensor& parameter = parameters_.list()[i].tensor;
    if (parameter.scalar_type() != type) {
      continue;
    }
    tensors.parameters.push_back(parameter);
    tensors.gradients.push_back(gradients[member]);
    tensors.exp_avg.push_back(exp_avg_[i]);
    tensors.exp_avg_sq.push_back(exp_avg_sq_[i]);
    if (exp_avg_scale_[i].defined()) {
      tensors.exp_avg_scale.push_back(exp_avg_scale_[i]);
      tensors.exp_avg_sq_scale.push_back(exp_avg_sq_scale_[i]);
    }
    tensors.weight_decay.push_back(weight_decay_[i]);
    tensors.positions.push_back(static_cast<std::int64_t>(i));
    if (master_[i].defined()) {
      tensors.master.push_back(master_[i]);
    }
  }
  return tensors;
}

NamedTensors Optimizer::state() const {
  NamedTensors state;
  const auto add = [&](const char* kind, const Tensors& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].defined()) {
        state.emplace_back(concat(kind, ".", parameters_.list()[i].name), tensors[i]);
      }
    }
  };
  add("exp_avg", exp_avg_);
  add("exp_avg_sq", exp_avg_sq_);
  add("exp_avg_scale", exp_avg_scale_);
  add("exp_avg_sq_scale", exp_avg_sq_scale_);
  add("master", master_);
  return state;
}

}  // namespace phalanx
