#include "ops/attention_half.h"

#include "core/error.h"
#include "ops/attention.h"
#include "ops/projection_norm.h"
#include "ops/qk_norm_rope.h"
#include "ops/residual.h"
#include "ops/rms_norm.h"

#include <ATen/ops/mm.h>

namespace phalanx {
namespace {

enum Input { kX, kNorm, kWq, kWk, kWv, kWo, kBq, kBk, kBv, kBo, kQNorm, kKNorm, kInputs };
// The inputs are saved first, under their own numbers.
enum Saved { kRstd = kInputs, kQkv, kOut, kLogsumexp, kSeed, kOffset, kAllSaved };

void check_arguments(const at::Tensor& x, const AttentionWeights& weights, const AttentionSpec& spec,
                     const SequenceLayout& layout) {
  PHALANX_CHECK(x.dim() == 2 && x.size(0) == layout.tokens(), Error, "attention_half: x has shape ",
                x.sizes(), "; expected [", layout.tokens(), ", hidden]");
  const std::int64_t hidden = x.size(1), query = spec.num_heads * spec.head_dim,
                     kv = spec.num_kv_heads * spec.head_dim;
  at::ScalarType dtype = x.scalar_type();
  const auto check = [&](const char* name, const at::Tensor& tensor, std::vector<std::int64_t> shape) {
    PHALANX_CHECK(tensor.sizes() == at::IntArrayRef(shape), Error, "attention_half: ", name, " has shape ",
                  tensor.sizes(), "; expected ", at::IntArrayRef(shape));
    PHALANX_CHECK(tensor.scalar_type() == dtype, Error, "attention_half: ", name, " is ",
                  tensor.scalar_type(), "; expected ", dtype, ", convert one to the other's dtype");
  };
  const auto check_linear = [&](const char* name, const LinearWeights& linear, std::int64_t out,
                                std::int64_t in) {
    check(name, linear.weight, {out, in});
    if (linear.bias.defined()) {
      check(name, linear.bias, {out});
    }
  };
  check("norm", weights.norm, {hidden});
  dtype = weights.q.weight.scalar_type();
  check_linear("q", weights.q, query, hidden);
  check_linear("k", weights.k, kv, hidden);
  check_linear("v", weights.v, kv, hidden);
  check_linear("o", weights.o, hidden, query);
  const bool normed = spec.qk_norm != QkNorm::kNone;
  PHALANX_CHECK(weights.q_norm.defined() == normed && weights.k_norm.defined() == normed, Error,
                "attention_half: q_norm and k_norm must be given exactly when the spec has qk_norm");
  if (normed) {
    const bool per_head = spec.qk_norm == QkNorm::kPerHead;
    check("q_norm", weights.q_norm, {per_head ? spec.head_dim : query});
    check("k_norm", weights.k_norm, {per_head ? spec.head_dim : kv});
  }
}

class AttentionHalf final : public LayerHalf {
 public:
  AttentionHalf(const AttentionSpec& spec, double norm_eps, const RopeTable& rope,
                const SequenceLayout& layout)
      : spec_(spec), norm_eps_(norm_eps), rope_(rope), layout_(layout) {}
  const char* name() const override { return "attention_half"; }

  Tensors forward(const Tensors& in, Tensors& saved) override {
    saved = in;
    saved.resize(kAllSaved);
    restore(saved);
    return {output(saved)};
  }

  void drop(Tensors& saved, Recompute how) const override {
    saved[kRstd].reset();
    saved[kQkv].reset();
    if (how == Recompute::kFull) {
      for (const Saved part : {kOut, kLogsumexp, kSeed, kOffset}) {
        saved[part].reset();
      }
    }
  }

  void restore(Tensors& saved) override {
    at::Tensor n;
    std::tie(n, saved[kRstd]) = normalized(saved);
    saved[kQkv] = project(n, saved);
    if (saved[kOut].defined()) {
      return;
    }
    const AttentionForward attention =
        attention_forward(attention_inputs(changed(saved[kQkv], saved), saved), spec_, layout_);
    kernel_ = attention.kernel;
    saved[kOut] = without_padding(attention.out.flatten(1));  // [T, h d]
    saved[kLogsumexp] = attention.logsumexp;
    saved[kSeed] = attention.seed;
    saved[kOffset] = attention.offset;
  }

  at::Tensor output(const Tensors& saved) const override {
    at::Tensor result = add_product(saved[kX], saved[kOut], saved[kWo].t());
    return saved[kBo].defined() ? result.add_(saved[kBo]) : result;
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>& needs) override {
    const at::Tensor grad_result = grads[0].contiguous();
    const at::Tensor grad_product = grad_result.to(saved[kWo].scalar_type());
    Tensors result(kInputs);
    result[kWo] = needs[kWo] ? grad_product.t().mm(saved[kOut]) : at::Tensor();
    result[kBo] = needs[kBo] ? grad_product.sum(0) : at::Tensor();
    if (!needs_projections(needs)) {
      return result;
    }
    const at::Tensor grad_out = without_padding(grad_product.mm(saved[kWo]));
    const at::Tensor grad_qkv = backward_to_projections(saved, grad_out, result);
    backward_through_projections(saved, grad_qkv, needs, result);
    if (needs[kX] || needs[kNorm]) {
      const at::Tensor grad_n = input_gradient(saved, grad_qkv).to(saved[kX].scalar_type());
      std::tie(result[kX], result[kNorm]) =
          rms_norm_backward(grad_n, saved[kX], saved[kNorm], saved[kRstd], grad_result);
    }
    return result;
  }

 private:
  // The normalised input in the dtype of the weights, and 1 / rms of each token.
  std::pair<at::Tensor, at::Tensor> normalized(const Tensors& in) const {
    const auto [n, rstd] = rms_norm_forward(in[kX], in[kNorm], norm_eps_);
    return {n.to(in[kWq].scalar_type()), rstd};
  }

  // Changes `rows` [T, *].
  at::Tensor without_padding(at::Tensor rows) const {
    return layout_.padding.defined() ? rows.index_fill_(0, layout_.padding, 0.0) : rows;
  }

  // Columns of q, k or v in qkv.
  struct Columns {
    std::int64_t begin, width;
  };
  Columns columns(Input weight) const {
    const std::int64_t query = spec_.num_heads * spec_.head_dim, kv = spec_.num_kv_heads * spec_.head_dim;
    return weight == kWq ? Columns{0, query} : Columns{weight == kWk ? query : query + kv, kv};
  }
  at::Tensor slice(const at::Tensor& qkv, Input weight) const {
    return qkv.narrow(1, columns(weight).begin, columns(weight).width);
  }
  at::Tensor heads(const at::Tensor& qkv, Input weight) const {  // [T, heads, d], a view
    return slice(qkv, weight).unflatten(1, {columns(weight).width / spec_.head_dim, spec_.head_dim});
  }

  // The rows of q, k and v as one matrix [(h + 2g) d, H], when they are one in memory.
  at::Tensor fused_weight(const Tensors& in) const {
    if (!lie_side_by_side(in[kWq], in[kWk], in[kWv])) {
      return {};
    }
    const std::int64_t hidden = in[kWq].size(1);
    return in[kWq].as_strided({columns(kWv).begin + columns(kWv).width, hidden}, {hidden, 1});
  }

  at::Tensor project(const at::Tensor& n, const Tensors& in) const {
    at::Tensor qkv = n.new_empty({n.size(0), columns(kWv).begin + columns(kWv).width});
    if (const at::Tensor weight = fused_weight(in); weight.defined()) {
      at::mm_out(qkv, n, weight.t());
    } else {
      for (const Input weight_index : {kWq, kWk, kWv}) {
        at::Tensor target = slice(qkv, weight_index);
        at::mm_out(target, n, in[weight_index].t());
      }
    }
    for (const Input weight_index : {kWq, kWk, kWv}) {
      if (const at::Tensor& bias = in[weight_index - kWq + kBq]; bias.defined()) {
        slice(qkv, weight_index).add_(bias);
      }
    }
    return qkv;
  }

  bool changes_projections() const {
    return spec_.qk_norm == QkNorm::kAllHeads || spec_.clip_qkv.has_value();
  }

  ProjectionNormInputs projection_norm_inputs(const at::Tensor& qkv, const Tensors& in) const {
    ProjectionNormInputs inputs{qkv,           {}, {}, columns(kWq).width, columns(kWk).width, spec_.norm_eps,
                                spec_.clip_qkv};
    if (spec_.qk_norm == QkNorm::kAllHeads) {
      inputs.q_norm = in[kQNorm];
      inputs.k_norm = in[kKNorm];
    }
    return inputs;
  }

  // The projections as they are split into heads.
  at::Tensor changed(const at::Tensor& qkv, const Tensors& in) const {
    return changes_projections() ? projection_norm_forward(projection_norm_inputs(qkv, in)) : qkv;
  }

  QkNormRopeInputs rope_inputs(const at::Tensor& changed_qkv, const Tensors& in) const {
    QkNormRopeInputs inputs{
        heads(changed_qkv, kWq), heads(changed_qkv, kWk), std::nullopt, std::nullopt, rope_.cos, rope_.sin,
        spec_.norm_eps};
    if (spec_.qk_norm == QkNorm::kPerHead) {
      inputs.q_norm = in[kQNorm];
      inputs.k_norm = in[kKNorm];
    }
    return inputs;
  }

  AttentionInputs attention_inputs(const at::Tensor& changed_qkv, const Tensors& in) const {
    const auto [q, k] = qk_norm_rope_forward(rope_inputs(changed_qkv, in));
    return {q, k, heads(changed_qkv, kWv)};
  }

  // Whether anything before the attention is trained.
  static bool needs_projections(const std::vector<bool>& needs) {
    for (const Input input : {kX, kNorm, kWq, kWk, kWv, kBq, kBk, kBv, kQNorm, kKNorm}) {
      if (needs[input]) {
        return true;
      }
    }
    return false;
  }

  at::Tensor backward_to_projections(const Tensors& saved, const at::Tensor& grad_out,
                                     Tensors& result) const {
    const AttentionForward forward{kernel_, saved[kOut].unflatten(1, {spec_.num_heads, spec_.head_dim}),
                                   saved[kLogsumexp], saved[kSeed], saved[kOffset]};
    const at::Tensor changed_qkv = changed(saved[kQkv], saved);
    const auto [grad_q, grad_k, grad_v] =
        attention_backward(grad_out.unflatten(1, {spec_.num_heads, spec_.head_dim}),
                           attention_inputs(changed_qkv, saved), forward, spec_, layout_);
    at::Tensor grad_qkv;
    std::tie(grad_qkv, result[kQNorm], result[kKNorm]) =
        qk_norm_rope_backward(grad_q, grad_k, grad_v, rope_inputs(changed_qkv, saved));
    if (!changes_projections()) {
      return grad_qkv;
    }
    const ProjectionNormGrads grads =
        projection_norm_backward(grad_qkv, projection_norm_inputs(saved[kQkv], saved));
    if (spec_.qk_norm == QkNorm::kAllHeads) {
      result[kQNorm] = grads.q_norm;
      result[kKNorm] = grads.k_norm;
    }
    return grads.qkv;
  }

  void backward_through_projections(const Tensors& saved, const at::Tensor& grad_qkv,
                                    const std::vector<bool>& needs, Tensors& result) const {
    for (const Input weight_index : {kWq, kWk, kWv}) {
      if (const int bias = weight_index - kWq + kBq; needs[bias]) {
        result[bias] = slice(grad_qkv, weight_index).sum(0);
      }
    }
    if (!needs[kWq] && !needs[kWk] && !needs[kWv]) {
      return;
    }
    const at::Tensor n = normalized(saved).first;
    if (needs[kWq] && needs[kWk] && needs[kWv]) {
      const at::Tensor grad = grad_qkv.t().mm(n);  // [(h + 2g) d, H], three dense blocks of rows
      for (const Input weight_index : {kWq, kWk, kWv}) {
        result[weight_index] = grad.narrow(0, columns(weight_index).begin, columns(weight_index).width);
      }
      return;
    }
    for (const Input weight_index : {kWq, kWk, kWv}) {
      if (needs[weight_index]) {
        result[weight_index] = slice(grad_qkv, weight_index).t().mm(n);
      }
    }
  }

  at::Tensor input_gradient(const Tensors& saved, const at::Tensor& grad_qkv) const {
    if (const at::Tensor weight = fused_weight(saved); weight.defined()) {
      return grad_qkv.mm(weight);
    }
    at::Tensor grad_n = slice(grad_qkv, kWq).mm(saved[kWq]);
    grad_n.addmm_(slice(grad_qkv, kWk), saved[kWk]);
    return grad_n.addmm_(slice(grad_qkv, kWv), saved[kWv]);
  }

  AttentionSpec spec_;
  double norm_eps_;
  RopeTable rope_;
  SequenceLayout layout_;
  AttentionKernel kernel_ = AttentionKernel::kCpu;  // of the forward pass
};

}  // namespace

bool lie_side_by_side(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto follows = [](const at::Tensor& first, const at::Tensor& second) {
    return first.is_contiguous() && second.is_contiguous() && first.is_alias_of(second) &&
           second.storage_offset() == first.storage_offset() + first.numel();
  };
  return follows(q, k) && follows(k, v);
}

HalfCall attention_half_call(const at::Tensor& x, const AttentionWeights& weights, const AttentionSpec& spec,
                             double norm_eps, const RopeTable& rope, const SequenceLayout& layout) {
  check_arguments(x, weights, spec, layout);
  return {std::make_unique<AttentionHalf>(spec, norm_eps, rope, layout),
          {x, weights.norm, weights.q.weight, weights.k.weight, weights.v.weight, weights.o.weight,
           weights.q.bias, weights.k.bias, weights.v.bias, weights.o.bias, weights.q_norm, weights.k_norm}};
}

at::Tensor attention_half(const at::Tensor& x, const AttentionWeights& weights, const AttentionSpec& spec,
                          double norm_eps, const RopeTable& rope, const SequenceLayout& layout) {
  return run_half(attention_half_call(x, weights, spec, norm_eps, rope, layout))[0];
}

}  // namespace phalanx
