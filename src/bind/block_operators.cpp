// The fused blocks as operators for Python: torch.ops.phalanx.attention_half and its like, differentiable there as here.
//
// They are composites: what they are made of (ops/block.h and the device operators) is what fake tensors, checkpointing and other
// devices see. Under autocast the weights of the products are cast to its dtype and the residual stream stays as it is, which is what
// Transformers' layers come to.
#include "core/error.h"
#include "ops/attention_half.h"
#include "ops/expert_choice.h"
#include "ops/experts.h"
#include "ops/gated_mlp.h"
#include "ops/linear_cross_entropy.h"
#include "ops/load_balancing_loss.h"
#include "ops/mlp_half.h"
#include "ops/moe_half.h"
#include "ops/qk_norm_rope.h"
#include "ops/rms_norm.h"
#include "ops/router.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/mm.h>
#include <torch/custom_class.h>
#include <torch/library.h>

namespace phalanx {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// Casts as the autocast that is on for the device of `x` asks, or not at all.
class Autocast {
 public:
  explicit Autocast(const at::Tensor& x)
      : device_(x.device().type()), on_(at::autocast::is_autocast_enabled(device_)) {}

  at::Tensor operator()(const at::Tensor& tensor) const {
    return on_ ? at::autocast::cached_cast(at::autocast::get_autocast_dtype(device_), tensor, device_)
               : tensor;
  }
  at::Tensor operator()(const OptionalTensor& tensor) const {
    return tensor.has_value() ? (*this)(*tensor) : at::Tensor();
  }

 private:
  at::DeviceType device_;
  bool on_;
};

// The leading dimensions of x [..., H] as one.
at::Tensor rows_of(const at::Tensor& x) { return x.dim() == 2 ? x : x.reshape_symint({-1, x.sym_size(-1)}); }

// Documents of the given lengths, end to end, made once per batch. `padding` [P] int64: the tokens that are none.
struct Documents : torch::CustomClassHolder {
  Documents(const std::vector<std::int64_t>& lengths, at::Device device, const OptionalTensor& padding)
      : layout(layout_from_lengths(lengths, device)) {
    layout.padding = padding.value_or(at::Tensor());
  }

  SequenceLayout layout;
};

at::Tensor attention_half_operator(const at::Tensor& x, const at::Tensor& norm, const at::Tensor& q,
                                   const at::Tensor& k, const at::Tensor& v, const at::Tensor& o,
                                   const OptionalTensor& q_bias, const OptionalTensor& k_bias,
                                   const OptionalTensor& v_bias, const OptionalTensor& o_bias,
                                   const OptionalTensor& q_norm, const OptionalTensor& k_norm,
                                   const at::Tensor& cos, const at::Tensor& sin,
                                   const c10::intrusive_ptr<Documents>& documents, std::int64_t head_dim,
                                   double scale, std::optional<std::int64_t> sliding_window, double norm_eps,
                                   double head_norm_eps, std::optional<double> clip_qkv) {
  const Autocast cast(x);
  AttentionWeights weights{norm,
                           {cast(q), cast(q_bias)},
                           {cast(k), cast(k_bias)},
                           {cast(v), cast(v_bias)},
                           {cast(o), cast(o_bias)},
                           cast(q_norm),
                           cast(k_norm)};
  AttentionSpec spec;
  spec.num_heads = q.size(0) / head_dim;
  spec.num_kv_heads = k.size(0) / head_dim;
  spec.head_dim = head_dim;
  spec.scale = scale;
  spec.sliding_window = sliding_window;
  if (q_norm.has_value()) {
    spec.qk_norm = q_norm->numel() == head_dim ? QkNorm::kPerHead : QkNorm::kAllHeads;
  }
  spec.norm_eps = head_norm_eps;
  spec.clip_qkv = clip_qkv;
  return attention_half(rows_of(x), weights, spec, norm_eps, {cos, sin}, documents->layout).view_as(x);
}

// Where the residual stream is wider than the products, the half is put together from its parts.
at::Tensor mlp_half_operator(const at::Tensor& x, const at::Tensor& norm, const at::Tensor& gate,
                             const at::Tensor& up, const at::Tensor& down, double norm_eps) {
  const Autocast cast(x);
  const MlpWeights weights{norm, {cast(gate), {}}, {cast(up), {}}, {cast(down), {}}};
  if (weights.gate.weight.scalar_type() == x.scalar_type()) {
    return mlp_half(rows_of(x), weights, norm_eps).view_as(x);
  }
  const at::Tensor n = rms_norm(rows_of(x), norm, norm_eps).to(weights.gate.weight.scalar_type());
  return x + gated_mlp(n, {weights.gate, weights.up, weights.down, {}}).view_as(x);
}

ScoreFunction score_function_from_name(const std::string& name) {
  PHALANX_CHECK(name == "softmax" || name == "sigmoid", Error, "moe_half: the score function is '", name,
                "'; it is softmax or sigmoid");
  return name == "softmax" ? ScoreFunction::kSoftmax : ScoreFunction::kSigmoid;
}

// `shared`: gate, up and down of the expert that every token passes and, where its output is scaled, the weight of that gate; empty
// where the layer has none. The router's product is made in the dtype of its weight. Where the residual stream is wider than the
// products, the half is put together from its parts.
std::tuple<at::Tensor, at::Tensor> moe_half_operator(
    const at::Tensor& x, const at::Tensor& norm, const at::Tensor& router_weight, const at::Tensor& gate_up,
    const at::Tensor& down, std::int64_t top_k, bool normalize, double norm_eps,
    const std::string& implementation, const std::string& score, double scale, std::int64_t num_groups,
    std::int64_t top_groups, const OptionalTensor& correction_bias, at::TensorList shared) {
  PHALANX_CHECK(shared.empty() || shared.size() == 3 || shared.size() == 4, Error,
                "moe_half: ", shared.size(),
                " tensors for the shared expert; give gate, up, down and perhaps its output gate");
  const Autocast cast(x);
  RouterSpec spec;
  spec.num_experts = router_weight.size(0);
  spec.top_k = top_k;
  spec.score = score_function_from_name(score);
  spec.normalize = normalize;
  spec.scale = scale;
  spec.correction_bias = correction_bias.has_value();
  spec.num_groups = num_groups;
  spec.top_groups = top_groups;
  MoeOptions options;
  options.experts = experts_implementation_from_name(implementation);
  options.want_router_logits = true;
  MoeWeights weights{norm, cast(router_weight), {cast(gate_up), cast(down)}};
  weights.correction_bias = correction_bias.value_or(at::Tensor());
  if (!shared.empty()) {
    weights.shared = {{cast(shared[0]), {}},
                      {cast(shared[1]), {}},
                      {cast(shared[2]), {}},
                      shared.size() == 4 ? cast(shared[3]) : at::Tensor()};
  }
  if (weights.experts.down.scalar_type() == x.scalar_type()) {
    const MoeResult result = moe_half(rows_of(x), weights, spec, norm_eps, options);
    return {result.out.view_as(x), result.router_logits};
  }
  const at::Tensor n = rms_norm(rows_of(x), norm, norm_eps).to(weights.router.scalar_type());
  const at::Tensor logits = at::mm(n, weights.router.t());
  const Routing routing = router(logits, spec, choose_experts(logits, spec, weights.correction_bias));
  at::Tensor y = experts(n, routing.indices, routing.weights, weights.experts, options.experts);
  if (weights.shared.has_value()) {
    y = y + gated_mlp(n, *weights.shared);
  }
  return {x + y.view_as(x), logits};
}

at::Tensor gated_mlp_operator(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up,
                              const at::Tensor& down) {
  const Autocast cast(x);
  const at::Tensor n = cast(x);
  return gated_mlp(rows_of(n), {{cast(gate), {}}, {cast(up), {}}, {cast(down), {}}, {}}).view_as(x);
}

// q [B, h, S, d] and k [B, g, S, d], as a rule views of projections [B, S, heads * d]; cos, sin [B * S, D / 2].
std::tuple<at::Tensor, at::Tensor> rope_operator(const at::Tensor& q, const at::Tensor& k,
                                                 const at::Tensor& cos, const at::Tensor& sin) {
  PHALANX_CHECK(q.dim() == 4 && k.dim() == 4, Error, "rope: q ", q.sym_sizes(), " and k ", k.sym_sizes(),
                "; expected [batch, heads, tokens, head size]");
  const auto by_token = [](const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1); };
  const auto [q_out, k_out] = qk_norm_rope({by_token(q), by_token(k), {}, {}, cos, sin});
  const auto as_given = [](const at::Tensor& out, const at::Tensor& x) {
    return out.view_symint({x.sym_size(0), x.sym_size(2), x.sym_size(1), x.sym_size(3)}).transpose(1, 2);
  };
  return {as_given(q_out, q), as_given(k_out, k)};
}

at::Tensor experts_operator(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& weights,
                            const at::Tensor& gate_up, const at::Tensor& down,
                            const std::string& implementation) {
  const Autocast cast(x);
  return experts(cast(x), indices.to(at::kInt), cast(weights), {cast(gate_up), cast(down)},
                 experts_implementation_from_name(implementation));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_operator(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
    const OptionalTensor& token_weights, bool want_entropy) {
  const Autocast cast(hidden);
  const LinearCrossEntropyResult result =
      linear_cross_entropy(rows_of(cast(hidden)), cast(weight), labels.flatten(),
                           token_weights.has_value() ? token_weights->flatten() : at::Tensor(), want_entropy);
  return {result.loss_sum, result.token_loss.view_as(labels), result.correct.view_as(labels),
          want_entropy ? result.entropy.view_as(labels) : result.token_loss.new_empty({0})};
}

at::Tensor load_balancing_loss_operator(at::TensorList router_logits, std::int64_t top_k) {
  return load_balancing_loss(router_logits.vec(), top_k);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(phalanx, m) {
  m.class_<Documents>("Documents")
      .def(torch::init<std::vector<std::int64_t>, at::Device, OptionalTensor>(), "",
           {torch::arg("lengths"), torch::arg("device"), torch::arg("padding") = torch::arg::none()});
  m.def(
      "attention_half(Tensor x, Tensor norm, Tensor q, Tensor k, Tensor v, Tensor o, Tensor? q_bias, "
      "Tensor? k_bias, Tensor? v_bias, Tensor? o_bias, Tensor? q_norm, Tensor? k_norm, Tensor cos, "
      "Tensor sin, __torch__.torch.classes.phalanx.Documents documents, int head_dim, float scale, int? "
      "sliding_window, float norm_eps, "
      "float head_norm_eps, float? clip_qkv) -> Tensor",
      attention_half_operator);
  m.def("mlp_half(Tensor x, Tensor norm, Tensor gate, Tensor up, Tensor down, float norm_eps) -> Tensor",
        mlp_half_operator);
  m.def(
      "moe_half(Tensor x, Tensor norm, Tensor router, Tensor gate_up, Tensor down, int top_k, "
      "bool normalize, float norm_eps, str experts_implementation, str score, float scale, int num_groups, "
      "int top_groups, Tensor? correction_bias, Tensor[] shared) -> (Tensor out, Tensor router_logits)",
      moe_half_operator);
  m.def(
      "experts(Tensor x, Tensor indices, Tensor weights, Tensor gate_up, Tensor down, "
      "str experts_implementation) -> Tensor",
      experts_operator);
  m.def("gated_mlp(Tensor x, Tensor gate, Tensor up, Tensor down) -> Tensor", gated_mlp_operator);
  m.def("rope(Tensor q, Tensor k, Tensor cos, Tensor sin) -> (Tensor q, Tensor k)", rope_operator);
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", rms_norm);
  m.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor labels, Tensor? token_weights=None, "
      "bool want_entropy=False) -> (Tensor loss_sum, Tensor token_loss, Tensor correct, Tensor entropy)",
      linear_cross_entropy_operator);
  m.def("load_balancing_loss(Tensor[] router_logits, int top_k) -> Tensor", load_balancing_loss_operator);
}

}  // namespace phalanx
