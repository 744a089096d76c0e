#include "models/spec/model_spec.h"

#include "core/error.h"

#include <gtest/gtest.h>

#include <cmath>

namespace phalanx {
namespace {

Json qwen3_30b() {
  return Json::parse(
      R"({"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "head_dim": 128,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "rope_theta": 1000000.0,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16"})",
      "config.json");
}

std::string error_of(Json config) {
  try {
    make_model_spec(std::move(config), "M/config.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ModelSpec, SizesOfQwen3Of30BillionParameters) {
  const ModelSpec spec = make_model_spec(qwen3_30b(), "config.json");
  EXPECT_EQ(spec.num_parameters(), 30532122624);
  EXPECT_NEAR(static_cast<double>(spec.num_active_parameters()), 3.35e9, 0.01e9);
  EXPECT_NEAR(spec.flops_per_token(4096), 23.08e9, 0.01e9);
  EXPECT_EQ(spec.architecture, "Qwen3MoeForCausalLM");
  EXPECT_EQ(spec.dtype, Dtype::kBF16);
}

TEST(ModelSpec, DenseLayersWhereTheConfigSaysSo) {
  Json config = qwen3_30b();
  config.set("num_hidden_layers", 6);
  config.set("decoder_sparse_step", 2);
  config.set("mlp_only_layers", Json::parse("[3]", ""));
  const ModelSpec spec = make_model_spec(config, "config.json");
  std::string kinds;
  for (const LayerSpec& layer : spec.layers) {
    kinds += layer.feed_forward.router.has_value() ? 'E' : 'D';
  }
  EXPECT_EQ(kinds, "DEDDDE");
  EXPECT_EQ(spec.layers[0].feed_forward.width, 6144);
}

TEST(ModelSpec, ErrorsNameFileFieldValueAndRule) {
  Json config = qwen3_30b();
  config.set("num_experts_per_tok", 16);
  config.set("num_experts", 12);
  EXPECT_EQ(error_of(config), "M/config.json: num_experts_per_tok is 16; it cannot exceed num_experts = 12");
  config = qwen3_30b();
  config.set("hidden_size", -3);
  EXPECT_EQ(error_of(config), "M/config.json: hidden_size is -3; it must be an integer from 1 to 1048576");
  config = qwen3_30b();
  config.set("num_key_value_heads", 5);
  EXPECT_EQ(error_of(config),
            "M/config.json: num_key_value_heads is 5; it must divide num_attention_heads = 32");
}

// Sizes as published: 46.7 billion parameters, 12.9 of them active.
TEST(ModelSpec, MixtralOf8Times7BillionParameters) {
  const ModelSpec spec = make_model_spec(Json::parse(R"({"model_type": "mixtral"})", ""), "config.json");
  EXPECT_EQ(spec.num_parameters(), 46702792704);
  EXPECT_NEAR(static_cast<double>(spec.num_active_parameters()), 12.9e9, 0.05e9);
  EXPECT_TRUE(spec.layers.front().feed_forward.router->normalize);
  EXPECT_FALSE(spec.layers.front().attention.sliding_window.has_value());
  const Json noisy = Json::parse(R"({"model_type": "mixtral", "router_jitter_noise": 0.1})", "");
  EXPECT_EQ(
      error_of(noisy),
      "M/config.json: router_jitter_noise is 0.1; training runs without noise on the router's input; set it "
      "to 0, as released models have it");
}

// Sizes as published: 6.9 billion parameters, 1.3 of them active.
TEST(ModelSpec, OlmoeOf7BillionParameters) {
  const Json released =
      Json::parse(R"({"model_type": "olmoe", "intermediate_size": 1024, "clip_qkv": 8})", "");
  const ModelSpec spec = make_model_spec(released, "config.json");
  EXPECT_EQ(spec.num_parameters(), 6919161856);
  EXPECT_NEAR(static_cast<double>(spec.num_active_parameters()), 1.28e9, 0.01e9);
  EXPECT_EQ(spec.layers.front().attention.clip_qkv, 8.0);
  EXPECT_EQ(error_of(Json::parse(R"({"model_type": "olmoe", "head_dim": 64})", "")),
            "M/config.json: head_dim is 64; this family's heads must make up hidden_size together");
}

// Sizes as published for Qwen1.5-MoE-A2.7B: 14.3 billion parameters, 2.7 of them active.
TEST(ModelSpec, Qwen2MoeOf14BillionParameters) {
  const ModelSpec spec = make_model_spec(Json::parse(R"({"model_type": "qwen2_moe"})", ""), "config.json");
  EXPECT_EQ(spec.num_parameters(), 14315784192);
  EXPECT_NEAR(static_cast<double>(spec.num_active_parameters()), 2.69e9, 0.01e9);
  const LayerSpec& layer = spec.layers.front();
  EXPECT_TRUE(layer.attention.qkv_bias && !layer.attention.out_bias);
  EXPECT_EQ(layer.feed_forward.shared->width, 5632);
}

// Sizes as published for GLM-4.5-Air: 106 billion parameters, 12 of them active (the layer for multi-token prediction apart).
TEST(ModelSpec, Glm45AirOf106BillionParameters) {
  Json config = Json::parse(R"({"model_type": "glm4_moe", "attention_bias": true, "head_dim": 128,
      "partial_rotary_factor": 0.5, "rope_theta": 1000000, "routed_scaling_factor": 1.0})",
                            "");
  const ModelSpec spec = make_model_spec(config, "config.json");
  EXPECT_NEAR(static_cast<double>(spec.num_parameters()), 106.85e9, 0.1e9);
  EXPECT_EQ(spec.rope.inv_freq.size(), 32u);
  EXPECT_FALSE(spec.layers[0].feed_forward.router.has_value());
  EXPECT_EQ(spec.layers[1].feed_forward.shared->module, "shared_experts");
  const auto refusal = [&](const char* field, std::int64_t value) {
    Json changed = config;
    changed.set(field, value);
    return error_of(changed);
  };
  EXPECT_EQ(refusal("n_group", 3),
            "M/config.json: n_group is 3; it must divide n_routed_experts = 128 into groups of at least 2");
  EXPECT_EQ(refusal("topk_group", 2), "M/config.json: topk_group is 2; it cannot exceed n_group = 1");
  config.set("partial_rotary_factor", 0.26);
  EXPECT_NE(error_of(config).find("even number of head_dim = 128"), std::string::npos);
  EXPECT_NE(error_of(Json::parse(R"({"model_type": "mixtral", "partial_rotary_factor": 0.5})", ""))
                .find("this family rotates the whole head"),
            std::string::npos);
}

TEST(ModelSpec, WindowsOfQwen2MoeFollowTheLayerTypes) {
  const auto windows = [](const char* fields) {
    Json config = Json::parse(fields, "");
    config.set("model_type", "qwen2_moe");
    config.set("num_hidden_layers", 4);
    std::string result;
    for (const LayerSpec& layer : make_model_spec(config, "M/config.json").layers) {
      result += layer.attention.sliding_window.has_value() ? 'W' : '-';
    }
    return result;
  };
  EXPECT_EQ(windows("{}"), "----");
  EXPECT_EQ(windows(R"({"use_sliding_window": true})"), "W-W-");
  EXPECT_EQ(windows(R"({"use_sliding_window": true, "max_window_layers": 2})"), "W---");
  EXPECT_EQ(windows(R"({"use_sliding_window": true, "layer_types": ["full_attention", "sliding_attention",
                        "full_attention", "full_attention"]})"),
            "-W--");
  EXPECT_THROW(windows(R"({"layer_types": ["sliding_attention", "full_attention", "full_attention",
                                           "full_attention"]})"),
               ConfigError);
  EXPECT_THROW(windows(R"({"layer_types": ["full_attention"]})"), ConfigError);
  EXPECT_THROW(windows(R"({"layer_types": [1, 2, 3, 4]})"), ConfigError);
}

TEST(ModelSpec, ThePaddingTokenIsTheStatedOneOrTheFamilysDefault) {
  const auto token = [](const char* config) {
    return make_model_spec(Json::parse(config, ""), "config.json").pad_token;
  };
  EXPECT_EQ(token(R"({"model_type": "olmoe"})"), 1);
  EXPECT_EQ(token(R"({"model_type": "olmoe", "pad_token_id": null})"), std::nullopt);
  EXPECT_EQ(token(R"({"model_type": "mixtral"})"), std::nullopt);
  EXPECT_EQ(token(R"({"model_type": "mixtral", "pad_token_id": 7})"), 7);
  EXPECT_EQ(token(R"({"model_type": "mixtral", "pad_token_id": -1})"), 31999);
  EXPECT_EQ(error_of(Json::parse(R"({"model_type": "mixtral", "pad_token_id": 32000})", "")),
            "M/config.json: pad_token_id is 32000; it must be an integer from -32000 to 31999");
}

TEST(ModelSpec, UnknownFamilyNamesTheNearest) {
  Json config = qwen3_30b();
  config.set("model_type", "qwen3_mo");
  const std::string message = error_of(config);
  EXPECT_NE(message.find("\"qwen3_mo\""), std::string::npos);
  EXPECT_NE(message.find("did you mean"), std::string::npos);
  EXPECT_NE(message.find("adding-a-model"), std::string::npos);
  const auto nearest_of = [](const char* config) {
    const std::string text = error_of(Json::parse(config, ""));
    const std::string mark = "the nearest, by the fields of this file, is ";
    const std::size_t begin = text.find(mark);
    return begin == std::string::npos
               ? text
               : text.substr(begin + mark.size(), text.find(';', begin) - begin - mark.size());
  };
  EXPECT_EQ(nearest_of(R"({"model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128,
                "num_key_value_heads": 128, "n_routed_experts": 256, "n_group": 8, "topk_group": 4,
                "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "kv_lora_rank": 512})"),
            "glm4_moe");
  EXPECT_EQ(nearest_of(R"({"model_type": "phimoe", "num_local_experts": 16, "router_jitter_noise": 0.01})"),
            "mixtral");
}

// Values printed by Transformers 5.24's ROPE_INIT_FUNCTIONS for head_dim 16, theta 10000.
TEST(ModelSpec, RopeScalingKinds) {
  const auto frequencies = [](const char* rope) {
    Json config = qwen3_30b();
    config.set("head_dim", 16);
    config.set("rope_parameters", Json::parse(rope, ""));
    return make_model_spec(config, "config.json").rope;
  };
  const auto base = frequencies(R"({"rope_type": "default", "rope_theta": 10000.0})");
  ASSERT_EQ(base.inv_freq.size(), 8u);
  EXPECT_NEAR(base.inv_freq[1], 0.3162277638912201, 1e-7);
  const auto linear = frequencies(R"({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})");
  EXPECT_NEAR(linear.inv_freq[1], 0.3162277638912201 / 4, 1e-7);
  const auto expect_near = [](const RopeSpec& rope, const std::vector<double>& expected) {
    ASSERT_EQ(rope.inv_freq.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(rope.inv_freq[i], expected[i], 2e-7 * expected[i]) << i;
    }
  };
  const auto yarn = frequencies(R"({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                    "original_max_position_embeddings": 64})");
  EXPECT_NEAR(yarn.attention_scaling, 1.138629436111989, 1e-12);
  expect_near(yarn,
              {1.0, 0.23717081546783447, 0.04999999701976776, 0.007905694656074047, 0.0024999999441206455,
               0.0007905694656074047, 0.0002500000118743628, 7.905694656074047e-05});
  const auto llama3 = frequencies(R"({"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64})");
  expect_near(llama3,
              {1.0, 0.24438458681106567, 0.013042256236076355, 0.0039528473280370235, 0.0012499999720603228,
               0.00039528473280370235, 0.0001250000059371814, 3.9528473280370235e-05});
  EXPECT_NE(error_of([] {
              Json config = qwen3_30b();
              config.set("rope_scaling", Json::parse(R"({"type": "longrope"})", ""));
              return config;
            }())
                .find("default, linear, dynamic, yarn, llama3"),
            std::string::npos);
}

}  // namespace
}  // namespace phalanx
