#include "models/spec/decoder_config.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>

namespace phalanx {
namespace {

std::optional<Dtype> read_dtype(const ConfigReader& config) {
  const std::string name = config.text("dtype", config.text("torch_dtype", ""));
  if (name == "bfloat16") return Dtype::kBF16;
  if (name == "float16") return Dtype::kF16;
  if (name == "float32") return Dtype::kF32;
  return std::nullopt;
}

// A null says that there is none, also where the family has a default. A negative one counts from the end, as in torch.
std::optional<std::int64_t> read_pad_token(const ConfigReader& config, std::int64_t vocab_size,
                                           std::optional<std::int64_t> fallback) {
  if (config.json().find("pad_token_id") == nullptr) {
    return fallback;
  }
  if (!config.has("pad_token_id")) {
    return std::nullopt;
  }
  const std::int64_t token = config.integer({"pad_token_id"}, std::nullopt, -vocab_size, vocab_size - 1);
  return token < 0 ? token + vocab_size : token;
}

}  // namespace

ModelSpec read_decoder(const ConfigReader& config, const DecoderDefaults& defaults) {
  ModelSpec spec;
  spec.family = config.text("model_type", "");
  spec.vocab_size = config.integer({"vocab_size"}, defaults.vocab_size, 1, 1 << 24);
  spec.hidden_size = config.integer({"hidden_size"}, defaults.hidden_size, 1, 1 << 20);
  spec.max_positions = config.integer({"max_position_embeddings"}, defaults.max_positions, 1, 1 << 30);
  spec.norm_eps = config.number("rms_norm_eps", defaults.norm_eps, 0.0, 1.0);
  spec.initializer_range = config.number("initializer_range", 0.02, 0.0, 10.0);
  spec.tied_head = config.boolean("tie_word_embeddings", false);
  spec.pad_token = read_pad_token(config, spec.vocab_size, defaults.pad_token);
  if (config.boolean("output_router_logits", false)) {
    spec.router_aux_loss_coef = config.number("router_aux_loss_coef", defaults.aux_loss_coef, 0.0, 1e6);
  }
  if (config.text("hidden_act", "silu") != "silu") {
    config.refuse("hidden_act", "this family is built with silu");
  }
  if (config.number("attention_dropout", 0.0, 0.0, 1.0) != 0.0) {
    config.refuse("attention_dropout", "training runs without dropout; set it to 0");
  }
  spec.dtype = read_dtype(config);
  spec.config = config.json();
  return spec;
}

std::int64_t read_layer_count(const ConfigReader& config, std::int64_t fallback) {
  return config.integer({"num_hidden_layers"}, fallback, 1, 1000);
}

std::vector<bool> read_sparse_layers(const ConfigReader& config, const RouterSpec& router,
                                     std::int64_t layers) {
  const std::int64_t step = config.integer({"decoder_sparse_step"}, 1, 1, 1000);
  const std::vector<std::int64_t> dense = config.integers("mlp_only_layers");
  std::vector<bool> sparse;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    sparse.push_back(router.num_experts > 0 && (layer + 1) % step == 0 &&
                     std::find(dense.begin(), dense.end(), layer) == dense.end());
  }
  return sparse;
}

std::int64_t read_width(const ConfigReader& config, std::string_view name, std::int64_t fallback) {
  return config.integer({name}, fallback, 1, 1 << 20);
}

AttentionSpec read_attention(const ConfigReader& config, const ModelSpec& spec,
                             const HeadDefaults& defaults) {
  AttentionSpec attention;
  attention.num_heads = config.integer({"num_attention_heads"}, defaults.heads, 1, 4096);
  const std::int64_t kv_heads = defaults.kv_heads != 0 ? defaults.kv_heads : attention.num_heads;
  attention.num_kv_heads = config.integer({"num_key_value_heads"}, kv_heads, 1, 4096);
  attention.head_dim = config.integer(
      {"head_dim"}, std::max<std::int64_t>(1, spec.hidden_size / attention.num_heads), 1, 1024);
  if (attention.num_heads % attention.num_kv_heads != 0) {
    config.refuse("num_key_value_heads",
                  concat("it must divide num_attention_heads = ", attention.num_heads));
  }
  if (attention.head_dim % 2 != 0) {
    config.refuse("head_dim", "it must be even, because RoPE rotates pairs");
  }
  if (!config.has("head_dim") && spec.hidden_size % attention.num_heads != 0) {
    config.refuse("num_attention_heads", concat("it must divide hidden_size = ", spec.hidden_size));
  }
  attention.scale = 1.0 / std::sqrt(static_cast<double>(attention.head_dim));
  attention.norm_eps = spec.norm_eps;
  return attention;
}

RouterSpec read_router(const ConfigReader& config, std::initializer_list<std::string_view> experts_names,
                       const RouterDefaults& defaults) {
  RouterSpec router;
  router.num_experts = config.integer(experts_names, defaults.experts, defaults.may_be_none ? 0 : 1, 512);
  router.top_k = config.integer({"num_experts_per_tok"}, defaults.top_k, 1, 32);
  if (router.num_experts > 0 && router.top_k > router.num_experts) {
    config.refuse("num_experts_per_tok",
                  concat("it cannot exceed ", *experts_names.begin(), " = ", router.num_experts));
  }
  return router;
}

}  // namespace phalanx
