#include "ops/projection_norm.h"

#include "core/error.h"
#include "ops/block.h"
#include "ops/rms_norm.h"

namespace phalanx {
namespace {

void check_arguments(const ProjectionNormInputs& in) {
  PHALANX_CHECK(
      in.qkv.dim() == 2 && in.q_width >= 0 && in.k_width >= 0 && in.q_width + in.k_width <= in.qkv.size(1),
      Error, "projection_norm: q of ", in.q_width, " and k of ", in.k_width, " columns do not fit into qkv ",
      in.qkv.sizes());
  PHALANX_CHECK(in.q_norm.defined() == in.k_norm.defined(), Error,
                "projection_norm: a norm weight for one of q and k only; give both or neither");
  PHALANX_CHECK(!in.q_norm.defined() || (in.q_norm.sizes() == at::IntArrayRef({in.q_width}) &&
                                         in.k_norm.sizes() == at::IntArrayRef({in.k_width})),
                Error, "projection_norm: norm weights for q and k expected of ", in.q_width, " and ",
                in.k_width, " elements");
}

at::Tensor q_of(const at::Tensor& qkv, const ProjectionNormInputs& in) {
  return qkv.narrow(1, 0, in.q_width);
}
at::Tensor k_of(const at::Tensor& qkv, const ProjectionNormInputs& in) {
  return qkv.narrow(1, in.q_width, in.k_width);
}

struct Normed {
  at::Tensor qkv;             // q and k normalised, v as it was
  at::Tensor q_rstd, k_rstd;  // [T], undefined without norms
};

Normed normed(const ProjectionNormInputs& in) {
  Normed result{in.qkv.clone(), {}, {}};
  if (!in.q_norm.defined()) {
    return result;
  }
  at::Tensor q, k;
  std::tie(q, result.q_rstd) = rms_norm_forward(q_of(in.qkv, in), in.q_norm, in.eps);
  std::tie(k, result.k_rstd) = rms_norm_forward(k_of(in.qkv, in), in.k_norm, in.eps);
  q_of(result.qkv, in).copy_(q);
  k_of(result.qkv, in).copy_(k);
  return result;
}

class ProjectionNorm final : public Block {
 public:
  explicit ProjectionNorm(ProjectionNormInputs in) : in_(std::move(in)) {
    in_.qkv = in_.q_norm = in_.k_norm = at::Tensor();  // those come as inputs
  }
  const char* name() const override { return "projection_norm"; }

  Tensors forward(const Tensors& inputs, Tensors& saved) override {
    saved = inputs;
    return {projection_norm_forward(with(inputs))};
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>&) override {
    const ProjectionNormGrads result = projection_norm_backward(grads[0], with(saved));
    return {result.qkv, result.q_norm, result.k_norm};
  }

 private:
  ProjectionNormInputs with(const Tensors& tensors) const {
    ProjectionNormInputs in = in_;
    in.qkv = tensors[0];
    in.q_norm = tensors[1];
    in.k_norm = tensors[2];
    return in;
  }

  ProjectionNormInputs in_;
};

}  // namespace

at::Tensor projection_norm(const ProjectionNormInputs& in) {
  check_arguments(in);
  return apply(std::make_unique<ProjectionNorm>(in), {in.qkv, in.q_norm, in.k_norm})[0];
}

at::Tensor projection_norm_forward(const ProjectionNormInputs& in) {
  at::Tensor qkv = normed(in).qkv;
  return in.clip.has_value() ? qkv.clamp_(-*in.clip, *in.clip) : qkv;
}

ProjectionNormGrads projection_norm_backward(const at::Tensor& grad, const ProjectionNormInputs& in) {
  const Normed before_clip = normed(in);
  // What was cut off has no gradient; a value on the edge has, as in torch.
  ProjectionNormGrads grads{
      in.clip.has_value() ? grad.masked_fill(before_clip.qkv.abs().gt(*in.clip), 0.0) : grad.clone(), {}, {}};
  if (in.q_norm.defined()) {
    at::Tensor q, k;
    std::tie(q, grads.q_norm) =
        rms_norm_backward(q_of(grads.qkv, in), q_of(in.qkv, in), in.q_norm, before_clip.q_rstd, std::nullopt);
    std::tie(k, grads.k_norm) =
        rms_norm_backward(k_of(grads.qkv, in), k_of(in.qkv, in), in.k_norm, before_clip.k_rstd, std::nullopt);
    q_of(grads.qkv, in).copy_(q);
    k_of(grads.qkv, in).copy_(k);
  }
  return grads;
}

}  // namespace phalanx
