#include "models/spec/decoder_parameters.h"

#include "core/error.h"

namespace phalanx {
namespace {

class ParameterList {
 public:
  void matrix(const std::string& name, std::vector<std::int64_t> shape, bool fp32 = false) {
    parameters_.push_back({.name = name, .shape = std::move(shape), .fp32 = fp32});
  }
  void experts(const std::string& name, std::vector<std::int64_t> shape) {
    parameters_.push_back({.name = name, .shape = std::move(shape), .expert = true});
  }
  void vector(const std::string& name, std::int64_t size) {
    parameters_.push_back({.name = name, .shape = {size}, .decay = false});
  }
  void fp32_buffer(const std::string& name, std::int64_t size) {
    parameters_.push_back({.name = name, .shape = {size}, .decay = false, .fp32 = true, .trained = false});
  }
  void linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias = false) {
    matrix(name + ".weight", {out, in});
    if (bias) {
      vector(name + ".bias", out);
    }
  }
  std::vector<ParameterSpec> take() { return std::move(parameters_); }

 private:
  std::vector<ParameterSpec> parameters_;
};

void add_attention(const AttentionSpec& attention, std::int64_t hidden, const std::string& prefix,
                   ParameterList& list) {
  const std::int64_t query_width = attention.num_heads * attention.head_dim;
  const std::int64_t kv_width = attention.num_kv_heads * attention.head_dim;
  list.linear(prefix + "q_proj", query_width, hidden, attention.qkv_bias);
  list.linear(prefix + "k_proj", kv_width, hidden, attention.qkv_bias);
  list.linear(prefix + "v_proj", kv_width, hidden, attention.qkv_bias);
  list.linear(prefix + "o_proj", hidden, query_width, attention.out_bias);
  if (attention.qk_norm != QkNorm::kNone) {
    const bool per_head = attention.qk_norm == QkNorm::kPerHead;
    list.vector(prefix + "q_norm.weight", per_head ? attention.head_dim : query_width);
    list.vector(prefix + "k_norm.weight", per_head ? attention.head_dim : kv_width);
  }
}

void add_mlp(std::int64_t width, std::int64_t hidden, const std::string& prefix, ParameterList& list) {
  list.linear(prefix + "gate_proj", width, hidden);
  list.linear(prefix + "up_proj", width, hidden);
  list.linear(prefix + "down_proj", hidden, width);
}

void add_feed_forward(const FeedForwardSpec& feed_forward, std::int64_t hidden, const std::string& prefix,
                      ParameterList& list) {
  const std::int64_t width = feed_forward.width;
  if (!feed_forward.router.has_value()) {
    add_mlp(width, hidden, prefix, list);
    return;
  }
  const RouterSpec& router = *feed_forward.router;
  const std::int64_t experts = router.num_experts;
  list.experts(prefix + "experts.gate_up_proj", {experts, 2 * width, hidden});
  list.experts(prefix + "experts.down_proj", {experts, hidden, width});
  list.matrix(prefix + "gate.weight", {experts, hidden}, router.fp32);
  if (router.correction_bias) {
    list.fp32_buffer(prefix + "gate.e_score_correction_bias", experts);
  }
  if (const auto& shared = feed_forward.shared) {
    add_mlp(shared->width, hidden, prefix + shared->module + ".", list);
    if (shared->gated) {
      list.linear(prefix + shared->module + "_gate", 1, hidden);
    }
  }
}

}  // namespace

std::vector<ParameterSpec> decoder_parameters(const ModelSpec& spec) {
  ParameterList list;
  list.matrix("model.embed_tokens.weight", {spec.vocab_size, spec.hidden_size});
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const std::string prefix = concat("model.layers.", i, ".");
    add_attention(spec.layers[i].attention, spec.hidden_size, prefix + "self_attn.", list);
    add_feed_forward(spec.layers[i].feed_forward, spec.hidden_size, prefix + "mlp.", list);
    list.vector(prefix + "input_layernorm.weight", spec.hidden_size);
    list.vector(prefix + "post_attention_layernorm.weight", spec.hidden_size);
  }
  list.vector("model.norm.weight", spec.hidden_size);
  if (!spec.tied_head) {
    list.matrix("lm_head.weight", {spec.vocab_size, spec.hidden_size});
  }
  return list.take();
}

}  // namespace phalanx
