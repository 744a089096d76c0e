#include "train/plan/memory_plan.h"

#include "core/error.h"

#include <gtest/gtest.h>

#include <unistd.h>

namespace phalanx {
namespace {

ModelSpec tiny() {
  return make_model_spec(
      Json::parse(R"({"model_type": "qwen3_moe", "vocab_size": 100, "hidden_size": 16, "head_dim": 4,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 8,
      "num_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 4096})",
                  "config.json"),
      "config.json");
}

RunConfig run(std::int64_t rows, std::int64_t length, const std::string& precision = "fp32") {
  RunConfig config;
  config.train.micro_batch_size = rows;
  config.data.sequence_length = length;
  config.train.precision = precision;
  return config;
}

std::uint64_t bytes_of(const MemoryPlan& plan, const std::string& name) {
  for (const MemoryItem& item : plan.items) {
    if (item.name == name) {
      return item.bytes;
    }
  }
  return 0;
}

TEST(MemoryPlan, CountsEveryByteOfAParameter) {
  const auto parameters = static_cast<std::uint64_t>(tiny().num_parameters());
  const auto parameter_bytes = [&](const RunConfig& config) {
    const MemoryPlan plan = plan_training_memory(tiny(), config);
    return (bytes_of(plan, "weights") + bytes_of(plan, "master weights") + bytes_of(plan, "gradients") +
            bytes_of(plan, "optimizer states")) /
           parameters;
  };
  EXPECT_EQ(parameter_bytes(run(1, 64, "fp32")), 16u);
  EXPECT_EQ(parameter_bytes(run(1, 64, "bf16_master")), 16u);
  EXPECT_EQ(parameter_bytes(run(1, 64, "bf16_stochastic")), 12u);
  RunConfig accumulating = run(1, 64, "bf16_stochastic");
  accumulating.train.accumulation = 2;
  EXPECT_EQ(parameter_bytes(accumulating), 16u) << "sums over micro-batches are kept in fp32";
}

TEST(MemoryPlan, CountsWhatIsHeldInFp32InABf16Run) {
  const ModelSpec glm = make_model_spec(
      Json::parse(R"({"model_type": "glm4_moe", "vocab_size": 100, "hidden_size": 16, "head_dim": 4,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 8,
      "intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1})",
                  "config.json"),
      "config.json");
  const auto parameters = static_cast<std::uint64_t>(glm.num_parameters());
  const std::uint64_t wide =
      2 * (4 * 16 + 4);  // routers and correction biases of the two layers with experts
  const std::uint64_t narrow = parameters - 2 * 4 * 16;
  const MemoryPlan plan = plan_training_memory(glm, run(1, 64, "bf16_master"));
  EXPECT_EQ(bytes_of(plan, "weights"), 2 * narrow + 4 * wide);
  EXPECT_EQ(bytes_of(plan, "master weights"), 4 * narrow);
  EXPECT_EQ(bytes_of(plan, "gradients"), 2 * narrow + 4 * wide);
  EXPECT_EQ(bytes_of(plan, "optimizer states"), 8 * (narrow + wide));
}

TEST(MemoryPlan, ActivationsGrowWithTokensLayersAndExperts) {
  const auto activations = [](const ModelSpec& spec, const RunConfig& config) {
    return bytes_of(plan_training_memory(spec, config), "activations");
  };
  const std::uint64_t one = activations(tiny(), run(1, 64));
  EXPECT_EQ(activations(tiny(), run(2, 64)), 2 * one);
  EXPECT_EQ(activations(tiny(), run(1, 128)), 2 * one);
  EXPECT_LT(activations(tiny(), run(1, 64, "bf16_master")), one);

  Json config = tiny().config;
  config.set("num_experts_per_tok", 4);
  const std::uint64_t pre_activations = 64 * 2 * (2 * 8) * 4;  // two more experts a token, gate and up, fp32
  const std::uint64_t routing = 64 * 2 * (4 + 8 + 8);
  EXPECT_EQ(activations(make_model_spec(config, "config.json"), run(1, 64)),
            one + 3 * (pre_activations + routing));
}

TEST(MemoryPlan, NarrowStatesUpdatesWithinBackwardAndRecomputedLayers) {
  const auto parameters = static_cast<std::uint64_t>(tiny().num_parameters());
  const auto bytes = [&](const RunConfig& config, const std::string& name) {
    return bytes_of(plan_training_memory(tiny(), config), name);
  };
  RunConfig config = run(2, 64);
  const std::uint64_t all_gradients = bytes(config, "gradients"), all = bytes(config, "activations");
  config.optimizer.states = "bf16";
  EXPECT_EQ(bytes(config, "optimizer states"), 4 * parameters);
  config.optimizer.states = "8bit";
  EXPECT_GE(bytes(config, "optimizer states"), 2 * (parameters + parameters / 128));
  EXPECT_LE(bytes(config, "optimizer states"),
            2 * (parameters + parameters / 128 + tiny().parameters.size()));
  config.optimizer.update = "in_backward";
  EXPECT_LT(bytes(config, "gradients"), all_gradients / 3);
  EXPECT_GE(bytes(config, "gradients"), all_gradients / 6);
  config.train.recompute = "selective";
  const std::uint64_t selective = bytes(config, "activations");
  config.train.recompute = "full";
  EXPECT_LT(selective, all);
  EXPECT_LT(bytes(config, "activations"), selective);
}

TEST(MemoryPlan, OnAGpuActivationsMakeRoomForGradients) {
  const RunConfig small = run(1, 64, "bf16_stochastic"), large = run(64, 4096, "bf16_stochastic");
  const auto on_gpu = [](const RunConfig& config, const std::string& name) {
    return bytes_of(plan_training_memory(tiny(), config, true), name);
  };
  EXPECT_EQ(on_gpu(large, "gradients"), 0u) << "the peak is before there are any";
  EXPECT_GT(on_gpu(large, "activations"), 0u);
  EXPECT_EQ(on_gpu(small, "gradients") + on_gpu(small, "activations"),
            std::max(on_gpu(small, "gradients"), on_gpu(small, "activations")));
}

TEST(MemoryPlan, NamesChangesThatReallyFit) {
  const RunConfig config = run(8, 2048);
  EXPECT_NO_THROW(check_memory(tiny(), config, {plan_training_memory(tiny(), config).total(), "test"}));
  RunConfig changed = run(1, 2048);
  changed.train.accumulation = 8;
  const std::uint64_t available = plan_training_memory(tiny(), changed).total();
  EXPECT_THROW(check_memory(tiny(), config, {available, "test"}), ConfigError);
  EXPECT_NO_THROW(check_memory(tiny(), changed, {available, "test"}));
  const std::vector<std::string> ways = ways_to_fit(tiny(), config, {available, "test"});
  ASSERT_FALSE(ways.empty());
  EXPECT_EQ(ways.front().substr(0, 37), "--micro-batch-size 1 --accumulation 8");
  EXPECT_TRUE(ways_to_fit(tiny(), config, {1000, "test"}).empty());
}

TEST(MemoryPlan, RefusesWithTheFiguresAndTheCure) {
  try {
    check_memory(tiny(), run(64, 4096), {std::uint64_t{500} << 20, "the limit of the control group"});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("500.00 MiB are left (the limit of the control group)"), std::string::npos)
        << message;
    EXPECT_NE(message.find("activations"), std::string::npos);
    EXPECT_NE(message.find("it fits with --micro-batch-size 1"), std::string::npos);
  }
  try {
    check_memory(tiny(), run(1, 256), {1000, "test"});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("no setting makes it fit"), std::string::npos);
  }
}

TEST(AvailableMemory, IsWithinTheMachine) {
  const AvailableMemory available = available_host_memory();
  const auto pages = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES));
  EXPECT_GT(available.bytes, 0u);
  EXPECT_LE(available.bytes, pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_FALSE(available.limit.empty());
}

TEST(BytesText, PicksTheUnit) {
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(std::uint64_t{3} << 30), "3.00 GiB");
}

}  // namespace
}  // namespace phalanx
