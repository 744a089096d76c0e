#include "ops/fused_experts.h"

#include "ops/operator.h"

namespace phalanx {
namespace {

using Forward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&);
using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                                const at::Tensor&, const at::Tensor&,
                                                                const at::Tensor&, const at::Tensor&,
                                                                const at::Tensor&);

}  // namespace

std::tuple<at::Tensor, at::Tensor> grouped_linear_swiglu(const at::Tensor& x, const at::Tensor& gate_up,
                                                         const at::Tensor& ends) {
  static const auto op = find_operator<Forward>("phalanx::_grouped_linear_swiglu");
  return op.call(x, gate_up, ends);
}

SwigluLinearGrads grouped_linear_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& down,
                                                 const at::Tensor& z, const at::Tensor& weights,
                                                 const ExpertGroups& groups) {
  static const auto op = find_operator<Backward>("phalanx::_grouped_linear_swiglu_backward");
  auto [grad_z, activation, grad_weights] =
      op.call(grad_out, down, z, weights, groups.ends, groups.choices, groups.rows);
  return {grad_z, activation, grad_weights};
}

std::tuple<at::Tensor, at::Tensor> grouped_linear_swiglu_meta(const at::Tensor& x, const at::Tensor& gate_up,
                                                              const at::Tensor&) {
  return {x.new_empty_symint({x.sym_size(0), gate_up.sym_size(1)}),
          x.new_empty_symint({x.sym_size(0), gate_up.sym_size(1) / 2})};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_linear_swiglu_backward_meta(
    const at::Tensor&, const at::Tensor& down, const at::Tensor& z, const at::Tensor& weights,
    const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  return {z.new_empty_symint(z.sym_sizes()), z.new_empty_symint({z.sym_size(0), down.sym_size(2)}),
          weights.new_empty_symint(weights.sym_sizes(), weights.options().dtype(at::kFloat))};
}

}  // namespace phalanx
