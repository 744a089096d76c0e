// Qwen2-MoE: attention with biases on q, k and v, a softmax router, experts with SwiGLU and one shared expert behind a sigmoid gate,
// dense layers mixed in. Source of the mathematics: Transformers' models/qwen2_moe.
#include "core/error.h"
#include "models/spec/decoder_config.h"
#include "models/spec/rope_scaling.h"

#include <string>
#include <vector>

namespace phalanx {
namespace {

// Without layer_types every second of the first max_window_layers layers has the window, beginning with layer 0.
std::vector<bool> read_windowed_layers(const ConfigReader& config, std::int64_t layers) {
  constexpr const char* kTypes = "layer_types";
  const std::int64_t most = config.integer({"max_window_layers"}, 28, 0, 1000);
  const bool windows = config.boolean("use_sliding_window", false);
  std::vector<bool> windowed(static_cast<std::size_t>(layers));
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    windowed[layer] = windows && layer % 2 == 0 && layer < most;
  }
  if (!config.has(kTypes)) {
    return windowed;
  }
  const std::vector<std::string> types = config.texts(kTypes);
  if (static_cast<std::int64_t>(types.size()) != layers) {
    config.refuse(kTypes, concat("it must name one type for each of the ", layers, " layers"));
  }
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    windowed[layer] = types[layer] == "sliding_attention";
    if (!windowed[layer] && types[layer] != "full_attention") {
      config.refuse(kTypes, "each layer must be sliding_attention or full_attention");
    }
    if (windowed[layer] && !windows) {
      config.refuse(kTypes, "a layer with sliding_attention needs use_sliding_window");
    }
  }
  return windowed;
}

}  // namespace

ModelSpec qwen2_moe_spec(const ConfigReader& config) {
  ModelSpec spec = read_decoder(config, {.vocab_size = 151936, .hidden_size = 2048, .max_positions = 32768});
  AttentionSpec attention = read_attention(config, spec, {.heads = 16, .kv_heads = 16});
  attention.qkv_bias = config.boolean("qkv_bias", true);
  spec.rope = read_rope(config, attention.head_dim, spec.max_positions);

  RouterSpec router = read_router(config, {"num_experts", "num_local_experts"},
                                  {.experts = 60, .top_k = 4, .may_be_none = true});
  router.normalize = config.boolean("norm_topk_prob", false);
  const SharedExpertSpec shared{"shared_expert", read_width(config, "shared_expert_intermediate_size", 5632),
                                /*gated=*/true};
  const FeedForwardSpec experts{router, read_width(config, "moe_intermediate_size", 1408), shared};
  const FeedForwardSpec dense{std::nullopt, read_width(config, "intermediate_size", 5632)};
  const std::int64_t layers = read_layer_count(config, 24);
  const std::vector<bool> sparse = read_sparse_layers(config, router, layers);
  const std::vector<bool> windowed = read_windowed_layers(config, layers);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    LayerSpec each{attention, sparse[layer] ? experts : dense};
    if (windowed[layer]) {
      each.attention.sliding_window = config.integer({"sliding_window"}, 4096, 1, 1 << 30);
    }
    spec.layers.push_back(std::move(each));
  }
  return spec;
}

}  // namespace phalanx
