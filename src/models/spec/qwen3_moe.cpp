// Qwen3-MoE: grouped-query attention with RMSNorm on q and k, a softmax router, experts with SwiGLU, dense layers mixed in.
// Source of the mathematics: Transformers' models/qwen3_moe.
#include "models/spec/decoder_config.h"
#include "models/spec/rope_scaling.h"

namespace phalanx {

ModelSpec qwen3_moe_spec(const ConfigReader& config) {
  ModelSpec spec = read_decoder(config, {.vocab_size = 151936, .hidden_size = 2048, .max_positions = 32768});
  AttentionSpec attention = read_attention(config, spec, {.heads = 32, .kv_heads = 4});
  attention.qk_norm = QkNorm::kPerHead;
  attention.qkv_bias = attention.out_bias = config.boolean("attention_bias", false);
  if (config.boolean("use_sliding_window", false) && config.has("sliding_window")) {
    attention.sliding_window = config.integer({"sliding_window"}, std::nullopt, 1, 1 << 30);
  }
  spec.rope = read_rope(config, attention.head_dim, spec.max_positions);

  RouterSpec router = read_router(config, {"num_experts", "num_local_experts"},
                                  {.experts = 128, .top_k = 8, .may_be_none = true});
  router.normalize = config.boolean("norm_topk_prob", false);
  const FeedForwardSpec experts{router, read_width(config, "moe_intermediate_size", 768)};
  const FeedForwardSpec dense{std::nullopt, read_width(config, "intermediate_size", 6144)};
  for (const bool sparse : read_sparse_layers(config, router, read_layer_count(config, 24))) {
    spec.layers.push_back({attention, sparse ? experts : dense});
  }
  return spec;
}

}  // namespace phalanx
