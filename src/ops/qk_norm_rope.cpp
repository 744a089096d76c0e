#include "ops/qk_norm_rope.h"

#include "core/error.h"
#include "ops/block.h"
#include "ops/operator.h"

namespace phalanx {
namespace {

using Forward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                   const OptionalTensor&, const OptionalTensor&,
                                                   const at::Tensor&, const at::Tensor&, double);
using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                                const at::Tensor&, const at::Tensor&,
                                                                const at::Tensor&, const OptionalTensor&,
                                                                const OptionalTensor&, const at::Tensor&,
                                                                const at::Tensor&, double);

void check_arguments(const QkNormRopeInputs& in) {
  PHALANX_CHECK(in.q.dim() == 3 && in.k.dim() == 3 && in.q.sym_size(0) == in.k.sym_size(0) &&
                    in.q.sym_size(2) == in.k.sym_size(2),
                Error, "qk_norm_rope: q ", in.q.sym_sizes(), " and k ", in.k.sym_sizes(),
                "; expected [tokens, heads, head size] with equal tokens and head size");
  PHALANX_CHECK(in.q_norm.has_value() == in.k_norm.has_value(), Error,
                "qk_norm_rope: a norm weight for one of q and k only; give both or neither");
  PHALANX_CHECK(in.cos.dim() == 2 && in.cos.sym_sizes() == in.sin.sym_sizes() &&
                    in.cos.sym_size(0) == in.q.sym_size(0) && in.cos.sym_size(1) * 2 <= in.q.sym_size(2),
                Error, "qk_norm_rope: cos ", in.cos.sym_sizes(), " and sin ", in.sin.sym_sizes(), " for q ",
                in.q.sym_sizes(), "; expected [tokens, rotary dimensions / 2]");
}

class QkNormRope final : public Block {
 public:
  explicit QkNormRope(double eps) : eps_(eps) {}
  const char* name() const override { return "qk_norm_rope"; }

  Tensors forward(const Tensors& inputs, Tensors& saved) override {
    saved = inputs;
    auto [q, k] = qk_norm_rope_forward(unpack(inputs));
    return {q, k};
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>&) override {
    const QkNormRopeInputs in = unpack(saved);
    const at::Tensor grad_q = grads[0].defined() ? grads[0] : in.q.new_zeros_symint(in.q.sym_sizes());
    const at::Tensor grad_k = grads[1].defined() ? grads[1] : in.k.new_zeros_symint(in.k.sym_sizes());
    const at::Tensor no_v = in.k.narrow(1, 0, 0);
    auto [grad_qk, grad_q_norm, grad_k_norm] = qk_norm_rope_backward(grad_q, grad_k, no_v, in);
    const auto q_width = in.q.sym_size(1) * in.q.sym_size(2);
    return {grad_qk.slice_symint(1, 0, q_width).view_symint(in.q.sym_sizes()),
            grad_qk.slice_symint(1, q_width).view_symint(in.k.sym_sizes()), grad_q_norm, grad_k_norm};
  }

 private:
  QkNormRopeInputs unpack(const Tensors& tensors) const {
    const auto optional = [](const at::Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; };
    return {tensors[0], tensors[1], optional(tensors[2]), optional(tensors[3]), tensors[4], tensors[5], eps_};
  }

  double eps_;
};

}  // namespace

std::tuple<at::Tensor, at::Tensor> qk_norm_rope(const QkNormRopeInputs& in) {
  check_arguments(in);
  Tensors out =
      apply(std::make_unique<QkNormRope>(in.eps),
            {in.q, in.k, in.q_norm.value_or(at::Tensor()), in.k_norm.value_or(at::Tensor()), in.cos, in.sin});
  return {out[0], out[1]};
}

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_forward(const QkNormRopeInputs& in) {
  static const auto op = find_operator<Forward>("phalanx::_qk_norm_rope_forward");
  return op.call(in.q, in.k, in.q_norm, in.k_norm, in.cos, in.sin, in.eps);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> qk_norm_rope_backward(const at::Tensor& grad_q,
                                                                     const at::Tensor& grad_k,
                                                                     const at::Tensor& grad_v,
                                                                     const QkNormRopeInputs& in) {
  static const auto op = find_operator<Backward>("phalanx::_qk_norm_rope_backward");
  return op.call(grad_q, grad_k, grad_v, in.q, in.k, in.q_norm, in.k_norm, in.cos, in.sin, in.eps);
}

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_forward_meta(const at::Tensor& q, const at::Tensor& k,
                                                             const OptionalTensor&, const OptionalTensor&,
                                                             const at::Tensor&, const at::Tensor&, double) {
  return {q.new_empty_symint(q.sym_sizes()), k.new_empty_symint(k.sym_sizes())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> qk_norm_rope_backward_meta(
    const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v, const at::Tensor& q,
    const at::Tensor&, const OptionalTensor& q_norm, const OptionalTensor& k_norm, const at::Tensor&,
    const at::Tensor&, double) {
  const auto heads = grad_q.sym_size(1) + grad_k.sym_size(1) + grad_v.sym_size(1);
  const auto like = [](const OptionalTensor& weight) {
    return weight.has_value() ? weight->new_empty_symint(weight->sym_sizes()) : at::Tensor();
  };
  return {q.new_empty_symint({q.sym_size(0), heads * q.sym_size(2)}), like(q_norm), like(k_norm)};
}

}  // namespace phalanx
