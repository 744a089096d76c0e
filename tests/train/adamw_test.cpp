#include "phalanx/adamw.h"

#include "core/error.h"
#include "core/file.h"
#include "support/temporary_folder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <gtest/gtest.h>

namespace phalanx {
namespace {

AutoModelForCausalLM random_model(const TemporaryFolder& folder) {
  write_file_atomic(folder / "config.json",
                    R"({"model_type": "qwen3_moe", "vocab_size": 50, "hidden_size": 16,
      "head_dim": 4, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64})");
  LoadOptions options;
  options.read_weights = false;
  options.dtype = at::kFloat;
  auto model = AutoModelForCausalLM::from_pretrained(folder.path(), options);
  const at::NoGradGuard no_grad;
  std::int64_t element = 0;
  for (const auto& [name, parameter] : model.named_parameters()) {
    const at::Tensor numbers = at::arange(element, element + parameter.numel());
    parameter.copy_(numbers.mul(0.7).sin_().mul_(0.3).view_as(parameter));
    element += parameter.numel();
  }
  return model;
}

at::Tensor backward(const AutoModelForCausalLM& model) {
  const at::Tensor loss = model.forward({.tokens = at::arange(1, 21), .labels = at::arange(2, 22)}).loss;
  loss.backward();
  return loss.detach();
}

TEST(AdamWOfALoop, GivesTheSameBitsWithinBackward) {
  const TemporaryFolder folder;
  AutoModelForCausalLM models[] = {random_model(folder), random_model(folder)};
  AdamWOptions options;
  options.learning_rate = 1e-2;
  options.states = "8bit";
  AdamW after(models[0], options);
  options.in_backward = true;
  AdamW within(models[1], options);
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(backward(models[0]).equal(backward(models[1])));
    after.step();
    within.step();
    EXPECT_GT(after.gradient_norm(), 0.0);
    EXPECT_NEAR(within.gradient_norm(), after.gradient_norm(), 1e-5 * after.gradient_norm());
  }
  const auto expected = models[0].named_parameters(), found = models[1].named_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(found[i].second.equal(expected[i].second)) << found[i].first;
    EXPECT_FALSE(found[i].second.grad().defined()) << found[i].first;
  }
}

TEST(AdamWOfALoop, LearnsAndScalesGradients) {
  const TemporaryFolder folder;
  AutoModelForCausalLM model = random_model(folder);
  AdamW optimizer(model, {.learning_rate = 1e-2});
  const double first = backward(model).item<double>();
  for (int step = 0; step < 30; ++step) {
    optimizer.step(0.5);
    backward(model);
  }
  EXPECT_LT(backward(model).item<double>(), 0.5 * first);
}

TEST(AdamWOfALoop, RefusesWhatItCannotDo) {
  const TemporaryFolder folder;
  AutoModelForCausalLM model = random_model(folder);
  EXPECT_THROW(AdamW(model, {.states = "4bit"}), ConfigError);
  AdamW within(model, {.in_backward = true});
  backward(model);
  EXPECT_THROW(within.step(0.5), ConfigError);
}

}  // namespace
}  // namespace phalanx
