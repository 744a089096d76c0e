// Reads what the config.json of Llama-like decoders have in common. Defaults are those of the family's configuration class in
// Transformers, for fields that config.json leaves out.
#pragma once
#include "models/spec/config_reader.h"
#include "models/spec/model_spec.h"

#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

namespace phalanx {

struct DecoderDefaults {
  std::int64_t vocab_size;
  std::int64_t hidden_size;
  std::int64_t max_positions;
  double norm_eps = 1e-6;
  double aux_loss_coef = 0.001;
  std::optional<std::int64_t> pad_token = std::nullopt;
};

// Everything of a ModelSpec but rope, layers, parameters and weights. Refuses another activation than SiLU and dropout.
ModelSpec read_decoder(const ConfigReader& config, const DecoderDefaults& defaults);

// num_hidden_layers
std::int64_t read_layer_count(const ConfigReader& config, std::int64_t fallback);

// For each of `layers` whether it has experts: there are any, it is not in mlp_only_layers and the decoder_sparse_step-th of its row.
std::vector<bool> read_sparse_layers(const ConfigReader& config, const RouterSpec& router,
                                     std::int64_t layers);

// The width of an MLP or an expert.
std::int64_t read_width(const ConfigReader& config, std::string_view name, std::int64_t fallback);

struct HeadDefaults {
  std::int64_t heads;
  std::int64_t kv_heads = 0;  // 0: as many as heads
};

// Heads, their size (head_dim, or hidden_size shared out) and scale, and the epsilon of norms; without window, bias and norms.
AttentionSpec read_attention(const ConfigReader& config, const ModelSpec& spec, const HeadDefaults& defaults);

struct RouterDefaults {
  std::int64_t experts;
  std::int64_t top_k;
  bool may_be_none = false;  // 0 experts make a model of dense layers
};

// A softmax router; `experts_names` are the names of the number of experts, the family's own first.
RouterSpec read_router(const ConfigReader& config, std::initializer_list<std::string_view> experts_names,
                       const RouterDefaults& defaults);

}  // namespace phalanx
