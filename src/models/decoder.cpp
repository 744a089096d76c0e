#include "models/decoder.h"

#include "core/error.h"
#include "ops/attention_half.h"
#include "ops/linear_cross_entropy.h"
#include "ops/load_balancing_loss.h"
#include "ops/mlp_half.h"
#include "ops/moe_half.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>

namespace phalanx {
namespace {

// Looks up the weights of one layer by the names of Transformers' modules.
class LayerWeights {
 public:
  LayerWeights(const ParameterSet& parameters, std::size_t layer)
      : parameters_(parameters), prefix_(concat("model.layers.", layer, ".")) {}

  AttentionWeights attention(const AttentionSpec& spec) const {
    AttentionWeights weights;
    weights.norm = get("input_layernorm.weight");
    weights.q = linear("self_attn.q_proj");
    weights.k = linear("self_attn.k_proj");
    weights.v = linear("self_attn.v_proj");
    weights.o = linear("self_attn.o_proj");
    if (spec.qk_norm != QkNorm::kNone) {
      weights.q_norm = get("self_attn.q_norm.weight");
      weights.k_norm = get("self_attn.k_norm.weight");
    }
    return weights;
  }

  MoeWeights moe(const FeedForwardSpec& spec) const {
    MoeWeights weights{get("post_attention_layernorm.weight"), get("mlp.gate.weight"),
                       ExpertWeights{get("mlp.experts.gate_up_proj"), get("mlp.experts.down_proj")}};
    if (spec.router->correction_bias) {
      weights.correction_bias = get("mlp.gate.e_score_correction_bias");
    }
    if (const auto& shared = spec.shared) {
      const std::string module = "mlp." + shared->module;
      weights.shared = {linear(module + ".gate_proj"), linear(module + ".up_proj"),
                        linear(module + ".down_proj"),
                        shared->gated ? get(module + "_gate.weight") : at::Tensor()};
    }
    return weights;
  }

  MlpWeights mlp() const {
    return {get("post_attention_layernorm.weight"), linear("mlp.gate_proj"), linear("mlp.up_proj"),
            linear("mlp.down_proj")};
  }

 private:
  const at::Tensor& get(const std::string& name) const { return parameters_.at(prefix_ + name); }
  LinearWeights linear(const std::string& name) const {
    return {get(name + ".weight"), parameters_.find(prefix_ + name + ".bias")};
  }

  const ParameterSet& parameters_;
  std::string prefix_;
};

void check_tokens(const at::Tensor& tokens, const SequenceLayout& layout, const ModelSpec& spec) {
  PHALANX_CHECK(tokens.dim() == 1 && tokens.scalar_type() == at::kLong && tokens.numel() == layout.tokens(),
                Error, "tokens are ", tokens.sizes(), " ", tokens.scalar_type(), ", the layout has ",
                layout.tokens(), " tokens; give one int64 id per token");
  PHALANX_CHECK(layout.tokens() > 0, Error, "a forward pass needs at least one token");
  PHALANX_CHECK(layout.max_length <= spec.max_positions, Error, "a document of ", layout.max_length,
                " tokens is longer than max_position_embeddings = ", spec.max_positions,
                "; shorten it or raise the field in config.json");
  const auto largest = tokens.max().item<std::int64_t>();
  const auto least = tokens.min().item<std::int64_t>();
  PHALANX_CHECK(least >= 0 && largest < spec.vocab_size, Error, "token id ", least < 0 ? least : largest,
                " is outside the vocabulary of ", spec.vocab_size,
                "; the tokenizer does not belong to this model");
}

// A weight of 1 / divisor per token. Divided afterwards, the loss would send back a gradient other than 1, by which all of the
// head's gradient [V, H] had to be multiplied.
at::Tensor divided_weights(const at::Tensor& hidden, double divisor) {
  const at::ScalarType type = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return divisor == 1.0 ? at::Tensor()
                        : at::full({hidden.size(0)}, 1.0 / divisor, hidden.options().dtype(type));
}

}  // namespace

DecoderOutput decoder_forward(const ModelSpec& spec, const ParameterSet& parameters, const at::Tensor& tokens,
                              const SequenceLayout& layout, const DecoderOptions& options) {
  check_tokens(tokens, layout, spec);
  const at::Tensor& embedding = parameters.at("model.embed_tokens.weight");
  const auto compute = embedding.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const RopeTable rope = make_rope_table(spec.rope, layout.position_ids, compute);
  DecoderOutput output;
  const at::Tensor ids = tokens.device() == embedding.device() ? tokens : upload(tokens, embedding.device());
  at::Tensor x = at::embedding(embedding, ids, spec.pad_token.value_or(-1));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const LayerWeights weights(parameters, i);
    HalfCall attention = attention_half_call(x, weights.attention(layer.attention), layer.attention,
                                             spec.norm_eps, rope, layout);
    if (!layer.feed_forward.router.has_value()) {
      HalfCall mlp = mlp_half_call(x, weights.mlp(), spec.norm_eps);
      x = run_layer(std::move(attention), std::move(mlp), options.recompute)[0];
      continue;
    }
    MoeOptions moe_options;
    moe_options.experts = options.experts;
    moe_options.want_router_logits = options.want_router_logits;
    moe_options.dispatcher = options.dispatcher;
    if (!options.replay_indices.empty()) {
      moe_options.replay_indices = options.replay_indices.at(output.expert_counts.size());
    }
    HalfCall moe = moe_half_call(x, weights.moe(layer.feed_forward), *layer.feed_forward.router,
                                 spec.norm_eps, moe_options);
    const MoeResult result = moe_result(run_layer(std::move(attention), std::move(moe), options.recompute));
    x = result.out;
    output.expert_counts.push_back(result.expert_counts);
    if (options.want_router_logits) {
      output.router_logits.push_back(result.router_logits);
    }
  }
  output.hidden = rms_norm(x, parameters.at("model.norm.weight"), spec.norm_eps);
  return output;
}

const at::Tensor& head_weight(const ModelSpec& spec, const ParameterSet& parameters) {
  return parameters.at(spec.tied_head ? "model.embed_tokens.weight" : "lm_head.weight");
}

LossOutput decoder_loss(const ModelSpec& spec, const ParameterSet& parameters, const at::Tensor& tokens,
                        const at::Tensor& labels, const SequenceLayout& layout, const LossOptions& options) {
  DecoderOptions decoder = options.decoder;
  decoder.want_router_logits = options.aux_loss_coef != 0.0;
  DecoderOutput run = decoder_forward(spec, parameters, tokens, layout, decoder);
  const LinearCrossEntropyResult head = linear_cross_entropy(
      run.hidden, head_weight(spec, parameters), labels, divided_weights(run.hidden, options.loss_divisor));
  LossOutput output;
  output.loss_sum = head.loss_sum.detach() * options.loss_divisor;
  output.correct = head.correct;
  output.expert_counts = std::move(run.expert_counts);
  output.objective = head.loss_sum;
  if (!run.router_logits.empty()) {
    // All layers have the same router, so that their statistics can be averaged as Transformers does.
    std::int64_t top_k = 0;
    for (const LayerSpec& layer : spec.layers) {
      top_k = layer.feed_forward.router.has_value() ? layer.feed_forward.router->top_k : top_k;
    }
    output.aux_loss = load_balancing_loss(run.router_logits, top_k);
    output.objective = output.objective + output.aux_loss * (options.aux_loss_coef * options.aux_loss_share);
  }
  return output;
}

}  // namespace phalanx
