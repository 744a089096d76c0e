// GLM-4.5 and its like: attention that rotates a part of each head, a sigmoid router in fp32 with a correction bias and groups of experts,
// experts with SwiGLU beside a shared one, dense layers first. Source of the mathematics: Transformers' models/glm4_moe.
#include "core/error.h"
#include "models/spec/decoder_config.h"
#include "models/spec/rope_scaling.h"

namespace phalanx {
namespace {

RouterSpec read_glm_router(const ConfigReader& config) {
  RouterSpec router =
      read_router(config, {"n_routed_experts", "num_local_experts"}, {.experts = 128, .top_k = 8});
  router.score = ScoreFunction::kSigmoid;
  router.correction_bias = true;
  router.fp32 = true;
  router.normalize = config.boolean("norm_topk_prob", true);
  router.scale = config.number("routed_scaling_factor", 1.0, 0.0, 1e6);
  router.num_groups = config.integer({"n_group"}, 1, 1, 512);
  router.top_groups = config.integer({"topk_group"}, 1, 1, 512);
  // A group counts by its two best experts.
  if (router.num_experts % router.num_groups != 0 || router.num_experts / router.num_groups < 2) {
    config.refuse("n_group", concat("it must divide n_routed_experts = ", router.num_experts,
                                    " into groups of at least 2"));
  }
  if (router.top_groups > router.num_groups) {
    config.refuse("topk_group", concat("it cannot exceed n_group = ", router.num_groups));
  }
  if (router.top_k > router.num_experts / router.num_groups * router.top_groups) {
    config.refuse("num_experts_per_tok", "it cannot exceed the experts in topk_group groups");
  }
  return router;
}

}  // namespace

ModelSpec glm4_moe_spec(const ConfigReader& config) {
  ModelSpec spec = read_decoder(
      config, {.vocab_size = 151552, .hidden_size = 4096, .max_positions = 131072, .norm_eps = 1e-5});
  spec.router_aux_loss_coef = 0.0;  // this family balances by the correction bias
  AttentionSpec attention = read_attention(config, spec, {.heads = 96, .kv_heads = 8});
  attention.qkv_bias = config.boolean("attention_bias", false);
  attention.qk_norm = config.boolean("use_qk_norm", false) ? QkNorm::kPerHead : QkNorm::kNone;
  spec.rope = read_rope(config, attention.head_dim, spec.max_positions, {.partial_rotary_factor = 0.5});

  const RouterSpec router = read_glm_router(config);
  const std::int64_t width = read_width(config, "moe_intermediate_size", 1408);
  const SharedExpertSpec shared{"shared_experts", width * config.integer({"n_shared_experts"}, 1, 1, 64)};
  const FeedForwardSpec experts{router, width, shared};
  const FeedForwardSpec dense{std::nullopt, read_width(config, "intermediate_size", 10944)};
  const std::int64_t layers = read_layer_count(config, 46);
  const std::int64_t dense_layers = config.integer({"first_k_dense_replace"}, 1, 0, 1000);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    spec.layers.push_back({attention, layer < dense_layers ? dense : experts});
  }
  return spec;
}

}  // namespace phalanx
