// OLMoE: attention with RMSNorm over all heads of q and of k and optional clipping, a softmax router, experts with SwiGLU in every
// layer. Source of the mathematics: Transformers' models/olmoe.
#include "models/spec/decoder_config.h"
#include "models/spec/rope_scaling.h"

#include <limits>

namespace phalanx {

ModelSpec olmoe_spec(const ConfigReader& config) {
  ModelSpec spec = read_decoder(config, {.vocab_size = 50304,
                                         .hidden_size = 2048,
                                         .max_positions = 4096,
                                         .norm_eps = 1e-5,
                                         .aux_loss_coef = 0.01,
                                         .pad_token = 1});
  AttentionSpec attention = read_attention(config, spec, {.heads = 16});
  if (attention.num_heads * attention.head_dim != spec.hidden_size) {
    config.refuse("head_dim", "this family's heads must make up hidden_size together");
  }
  attention.qkv_bias = attention.out_bias = config.boolean("attention_bias", false);
  attention.qk_norm = QkNorm::kAllHeads;
  if (config.has("clip_qkv")) {
    attention.clip_qkv = config.number("clip_qkv", std::nullopt, 0.0, std::numeric_limits<double>::max());
  }
  spec.rope = read_rope(config, attention.head_dim, spec.max_positions);

  RouterSpec router = read_router(config, {"num_experts", "num_local_experts"}, {.experts = 64, .top_k = 8});
  router.normalize = config.boolean("norm_topk_prob", false);
  const FeedForwardSpec experts{router, read_width(config, "intermediate_size", 2048)};
  spec.layers.assign(read_layer_count(config, 16), {attention, experts});
  return spec;
}

}  // namespace phalanx
