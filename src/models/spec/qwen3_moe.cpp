#include "models/spec/qwen3_moe.h"

#include "core/error.h"
#include "models/spec/decoder_parameters.h"
#include "models/spec/rope_scaling.h"

#include <algorithm>
#include <cmath>

namespace phalanx {
namespace {

AttentionSpec read_attention(const ConfigReader& config, std::int64_t hidden_size) {
  AttentionSpec attention;
  attention.num_heads = config.integer({"num_attention_heads"}, 32, 1, 4096);
  attention.num_kv_heads = config.integer({"num_key_value_heads"}, 4, 1, 4096);
  attention.head_dim =
      config.integer({"head_dim"}, std::max<std::int64_t>(1, hidden_size / attention.num_heads), 1, 1024);
  if (attention.num_heads % attention.num_kv_heads != 0) {
    config.refuse("num_key_value_heads",
                  concat("it must divide num_attention_heads = ", attention.num_heads));
  }
  if (attention.head_dim % 2 != 0) {
    config.refuse("head_dim", "it must be even, because RoPE rotates pairs");
  }
  if (!config.has("head_dim") && hidden_size % attention.num_heads != 0) {
    config.refuse("num_attention_heads", concat("it must divide hidden_size = ", hidden_size));
  }
  if (config.number("attention_dropout", 0.0, 0.0, 1.0) != 0.0) {
    config.refuse("attention_dropout", "training runs without dropout; set it to 0");
  }
  attention.scale = 1.0 / std::sqrt(static_cast<double>(attention.head_dim));
  attention.qk_norm = true;
  attention.bias = config.boolean("attention_bias", false);
  if (config.boolean("use_sliding_window", false) && config.has("sliding_window")) {
    attention.sliding_window = config.integer({"sliding_window"}, std::nullopt, 1, 1 << 30);
  }
  return attention;
}

RouterSpec read_router(const ConfigReader& config) {
  RouterSpec router;
  router.num_experts = config.integer({"num_experts", "num_local_experts"}, 128, 0, 512);
  router.top_k = config.integer({"num_experts_per_tok"}, 8, 1, 32);
  router.normalize = config.boolean("norm_topk_prob", false);
  if (router.num_experts > 0 && router.top_k > router.num_experts) {
    config.refuse("num_experts_per_tok", concat("it cannot exceed num_experts = ", router.num_experts));
  }
  return router;
}

}  // namespace

ModelSpec qwen3_moe_spec(const ConfigReader& config) {
  ModelSpec spec;
  read_common(config, {.vocab_size = 151936, .hidden_size = 2048, .max_positions = 32768}, spec);
  const std::int64_t layers = config.integer({"num_hidden_layers"}, 24, 1, 1000);
  const std::int64_t dense_width = config.integer({"intermediate_size"}, 6144, 1, 1 << 20);
  const std::int64_t expert_width = config.integer({"moe_intermediate_size"}, 768, 1, 1 << 20);
  const std::int64_t sparse_step = config.integer({"decoder_sparse_step"}, 1, 1, 1000);
  const std::vector<std::int64_t> dense_layers = config.integers("mlp_only_layers");
  const AttentionSpec attention = read_attention(config, spec.hidden_size);
  const RouterSpec router = read_router(config);
  if (config.text("hidden_act", "silu") != "silu") {
    config.refuse("hidden_act", "this family is built with silu");
  }
  spec.rope = read_rope(config, attention.head_dim, spec.max_positions, 10000.0);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const bool dense = std::find(dense_layers.begin(), dense_layers.end(), layer) != dense_layers.end() ||
                       router.num_experts == 0 || (layer + 1) % sparse_step != 0;
    FeedForwardSpec feed_forward;
    feed_forward.width = dense ? dense_width : expert_width;
    if (!dense) {
      feed_forward.router = router;
    }
    spec.layers.push_back({attention, feed_forward});
  }
  spec.parameters = decoder_parameters(spec);
  spec.weights = qwen3_moe_weights(spec);
  return spec;
}

}  // namespace phalanx
