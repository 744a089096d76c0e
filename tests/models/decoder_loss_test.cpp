#include "core/error.h"
#include "models/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <c10/core/Allocator.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

namespace phalanx {
namespace {

constexpr std::int64_t kVocab = 5000, kHidden = 16, kTokens = 12;

ModelSpec tiny() {
  return make_model_spec(
      Json::parse(R"({"model_type": "qwen3_moe", "vocab_size": 5000, "hidden_size": 16, "head_dim": 4,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 8,
      "num_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64})",
                  "config.json"),
      "config.json");
}

ParameterSet random_parameters(const ModelSpec& spec) {
  ParameterSet parameters(spec, at::kFloat, at::kCPU);
  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : parameters.list()) {
    parameter.tensor.normal_(0, 0.5);
  }
  return parameters;
}

LossOutput loss_of(const ModelSpec& spec, const ParameterSet& parameters, double divisor) {
  const at::Tensor tokens = at::arange(kTokens, at::TensorOptions().dtype(at::kLong));
  at::Tensor labels = tokens + 1;
  labels[kTokens - 1] = -100;
  LossOptions options;
  options.loss_divisor = divisor;
  return decoder_loss(spec, parameters, tokens, labels, layout_from_lengths({kTokens}), options);
}

at::Tensor head_gradient(const ModelSpec& spec, const ParameterSet& parameters, double divisor) {
  loss_of(spec, parameters, divisor).objective.backward();
  at::Tensor& gradient = parameters.at("lm_head.weight").mutable_grad();
  const at::Tensor result = gradient.clone();
  gradient.reset();
  return result;
}

// Hears of every allocation of this thread while it lives.
class LargestAllocation final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    largest = std::max(largest, bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t largest = 0;
};

TEST(DecoderLoss, IsDividedAndReportedWhole) {
  const ModelSpec spec = tiny();
  const ParameterSet parameters = random_parameters(spec);
  const LossOutput whole = loss_of(spec, parameters, 1.0), divided = loss_of(spec, parameters, 11.0);
  const double sum = whole.loss_sum.item<double>();
  EXPECT_GT(sum, 1.0);
  EXPECT_NEAR(whole.objective.item<double>(), sum, 1e-6 * sum);
  EXPECT_NEAR(divided.objective.item<double>(), sum / 11.0, 1e-6 * sum);
  EXPECT_NEAR(divided.loss_sum.item<double>(), sum, 1e-6 * sum);
  EXPECT_FALSE(divided.loss_sum.requires_grad());

  const at::Tensor once = head_gradient(spec, parameters, 1.0);
  const at::Tensor eleventh = head_gradient(spec, parameters, 11.0);
  EXPECT_LE((eleventh * 11.0 - once).abs().max().item<double>(), 1e-5 * once.abs().max().item<double>());
}

// The head's gradient, ready after the forward pass, becomes the parameter's as it is.
TEST(DecoderLoss, BackwardMakesNothingOfTheHeadsSize) {
  const ModelSpec spec = tiny();
  const ParameterSet parameters = random_parameters(spec);
  at::Tensor embedding = parameters.at("model.embed_tokens.weight");
  embedding.requires_grad_(false);  // its gradient is as large
  const at::Tensor objective = loss_of(spec, parameters, 11.0).objective;
  const auto heard = std::make_shared<LargestAllocation>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, heard);
    objective.backward();
  }
  EXPECT_TRUE(parameters.at("lm_head.weight").grad().defined());
  EXPECT_GT(heard->largest, 0);
  EXPECT_LT(heard->largest, kVocab * kHidden * 4);
}

}  // namespace
}  // namespace phalanx
