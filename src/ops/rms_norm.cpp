#include "ops/rms_norm.h"

#include "core/error.h"
#include "ops/block.h"
#include "ops/operator.h"

namespace phalanx {
namespace {

using Forward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, double);
using Backward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                    const at::Tensor&, const std::optional<at::Tensor>&);

void check_arguments(const at::Tensor& x, const at::Tensor& weight) {
  PHALANX_CHECK(x.dim() >= 1 && weight.dim() == 1 && x.sym_size(-1) == weight.sym_size(0), Error,
                "rms_norm: rows of x ", x.sym_sizes(), " and weight ", weight.sym_sizes(),
                " differ in width");
  PHALANX_CHECK(x.is_floating_point() && x.scalar_type() == weight.scalar_type(), Error, "rms_norm: x is ",
                x.scalar_type(), " and weight ", weight.scalar_type(), "; convert one to the other's dtype");
}

class RmsNorm final : public Block {
 public:
  explicit RmsNorm(double eps) : eps_(eps) {}
  const char* name() const override { return "rms_norm"; }

  Tensors forward(const Tensors& inputs, Tensors& saved) override {
    auto [y, rstd] = rms_norm_forward(inputs[0], inputs[1], eps_);
    saved = {inputs[0], inputs[1], rstd};
    return {y};
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>&) override {
    auto [grad_x, grad_weight] = rms_norm_backward(grads[0], saved[0], saved[1], saved[2], std::nullopt);
    return {grad_x, grad_weight};
  }

 private:
  double eps_;
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_arguments(x, weight);
  return apply(std::make_unique<RmsNorm>(eps), {x, weight})[0];
}

std::tuple<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                    double eps) {
  static const auto op = find_operator<Forward>("phalanx::_rms_norm_forward");
  return op.call(x, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& x,
                                                     const at::Tensor& weight, const at::Tensor& rstd,
                                                     const std::optional<at::Tensor>& residual_grad) {
  static const auto op = find_operator<Backward>("phalanx::_rms_norm_backward");
  return op.call(grad_y, x, weight, rstd, residual_grad);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_forward_meta(const at::Tensor& x, const at::Tensor& weight,
                                                         double) {
  auto rows = x.sym_sizes().vec();
  rows.pop_back();
  const auto statistics = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {x.new_empty_symint(x.sym_sizes()),
          weight.new_empty_symint(rows, weight.options().dtype(statistics))};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_meta(const at::Tensor&, const at::Tensor& x,
                                                          const at::Tensor& weight, const at::Tensor&,
                                                          const std::optional<at::Tensor>&) {
  return {x.new_empty_symint(x.sym_sizes()), weight.new_empty_symint(weight.sym_sizes())};
}

}  // namespace phalanx
