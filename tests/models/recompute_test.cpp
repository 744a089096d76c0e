// Activation checkpointing: the same bits as without, from less memory.
#include "core/error.h"
#include "models/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <c10/core/Allocator.h>

#include <gtest/gtest.h>

#include <memory>

namespace phalanx {
namespace {

constexpr std::int64_t kVocab = 50, kTokens = 40;

ModelSpec spec_of(const std::string& family, const std::string& more) {
  const std::string common = R"("vocab_size": 50, "hidden_size": 16, "head_dim": 4, "num_hidden_layers": 3,
      "num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 8, "intermediate_size": 24,
      "num_experts_per_tok": 2, "max_position_embeddings": 64, "model_type": ")" +
                             family + "\", ";
  return make_model_spec(Json::parse("{" + common + more + "}", "config.json"), "config.json");
}

ParameterSet random_parameters(const ModelSpec& spec, at::ScalarType dtype) {
  ParameterSet parameters(spec, dtype, at::kCPU);
  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : parameters.list()) {
    parameter.tensor.normal_(0, 0.3);
  }
  return parameters;
}

// Bytes that are allocated and not freed while it lives.
class LiveBytes final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    live += bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t live = 0;
};

struct Run {
  at::Tensor loss;
  Tensors gradients;
  std::int64_t kept;  // bytes between forward and backward
};

Run run(const ModelSpec& spec, const ParameterSet& parameters, const at::Tensor& tokens, Recompute how) {
  LossOptions options;
  options.decoder.recompute = how;
  options.aux_loss_coef = 0.1;
  auto* bytes = new LiveBytes;
  const std::shared_ptr<c10::DebugInfoBase> heard(bytes);
  Run result;
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, heard);
    const LossOutput output =
        decoder_loss(spec, parameters, tokens, tokens, layout_from_lengths({kTokens - 7, 7}), options);
    result.kept = bytes->live;
    result.loss = output.objective.detach();
    output.objective.backward();
  }
  for (const Parameter& parameter : parameters.list()) {
    result.gradients.push_back(parameter.tensor.grad());
    parameter.tensor.mutable_grad().reset();
  }
  return result;
}

void expect_the_same_bits(const ModelSpec& spec) {
  const at::Tensor tokens = at::randint(kVocab, {kTokens}, at::TensorOptions().dtype(at::kLong));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const ParameterSet parameters = random_parameters(spec, dtype);
    const Run plain = run(spec, parameters, tokens, Recompute::kNone);
    std::int64_t kept = plain.kept;
    for (const Recompute how : {Recompute::kSelective, Recompute::kFull}) {
      const Run again = run(spec, parameters, tokens, how);
      EXPECT_TRUE(again.loss.equal(plain.loss));
      for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
        ASSERT_EQ(again.gradients[i].defined(), plain.gradients[i].defined()) << parameters.list()[i].name;
        EXPECT_TRUE(!plain.gradients[i].defined() || again.gradients[i].equal(plain.gradients[i]))
            << parameters.list()[i].name;
      }
      EXPECT_LT(again.kept, kept);
      kept = again.kept;
    }
  }
}

TEST(Recompute, GivesTheSameBitsFromLessMemory) {
  expect_the_same_bits(spec_of("qwen3_moe", R"("num_experts": 4, "norm_topk_prob": true)"));
}

TEST(Recompute, WithDenseLayersSharedExpertsAndBiases) {
  expect_the_same_bits(spec_of("qwen2_moe", R"("num_experts": 4, "shared_expert_intermediate_size": 12,
      "mlp_only_layers": [1])"));
}

TEST(Recompute, NamesAreChecked) { EXPECT_THROW(recompute_from_name("all"), ConfigError); }

}  // namespace
}  // namespace phalanx
