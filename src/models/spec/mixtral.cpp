// Mixtral: grouped-query attention, a softmax router whose weights are divided by their sum, experts with SwiGLU in every layer.
// Source of the mathematics: Transformers' models/mixtral.
#include "models/spec/decoder_config.h"
#include "models/spec/rope_scaling.h"

namespace phalanx {

ModelSpec mixtral_spec(const ConfigReader& config) {
  ModelSpec spec = read_decoder(
      config, {.vocab_size = 32000, .hidden_size = 4096, .max_positions = 131072, .norm_eps = 1e-5});
  AttentionSpec attention = read_attention(config, spec, {.heads = 32, .kv_heads = 8});
  if (config.has("sliding_window")) {
    attention.sliding_window = config.integer({"sliding_window"}, std::nullopt, 1, 1 << 30);
  }
  spec.rope = read_rope(config, attention.head_dim, spec.max_positions, {.theta = 1e6});

  // Transformers draws the noise from torch's global generator; no resumed run could draw it again.
  if (config.number("router_jitter_noise", 0.0, 0.0, 1.0) != 0.0) {
    config.refuse(
        "router_jitter_noise",
        "training runs without noise on the router's input; set it to 0, as released models have it");
  }
  RouterSpec router = read_router(config, {"num_local_experts", "num_experts"}, {.experts = 8, .top_k = 2});
  router.normalize = true;
  const FeedForwardSpec experts{router, read_width(config, "intermediate_size", 14336)};
  spec.layers.assign(read_layer_count(config, 32), {attention, experts});
  return spec;
}

}  // namespace phalanx
