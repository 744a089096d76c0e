#include "ops/grouped_linear.h"

#include "core/error.h"
#include "ops/operator.h"

namespace phalanx {
namespace {

using Op = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, std::int64_t);

// Why ATen's grouped product cannot take these weights; empty when it can.
std::string refusal_of_grouped_mm(const at::Tensor& gate_up) {
  if (gate_up.scalar_type() != at::kFloat && gate_up.scalar_type() != at::kBFloat16) {
    return concat("has no kernel for ", gate_up.scalar_type());
  }
  const auto bytes = static_cast<std::int64_t>(gate_up.element_size());
  const c10::SymInt hidden = gate_up.sym_size(2), width = gate_up.sym_size(1) / 2;
  if (hidden * bytes % 16 != 0 || width * bytes % 16 != 0) {
    return concat("needs rows of a multiple of 16 bytes; hidden size ", hidden, " and expert width ", width,
                  " in ", gate_up.scalar_type(), " are not");
  }
  return "";
}

}  // namespace

ExpertsImplementation choose_experts_implementation(ExpertsImplementation wanted, const at::Tensor& gate_up) {
  PHALANX_CHECK(gate_up.dim() == 3 && gate_up.sym_size(1) % 2 == 0, Error, "experts: gate_up has shape ",
                gate_up.sym_sizes(), "; expected [experts, 2 * width, hidden]");
  if (wanted == ExpertsImplementation::kAuto) {
    wanted = gate_up.is_cpu() ? ExpertsImplementation::kEager : ExpertsImplementation::kGroupedMm;
  }
  if (wanted == ExpertsImplementation::kGroupedMm) {
    const std::string refusal = refusal_of_grouped_mm(gate_up);
    PHALANX_CHECK(refusal.empty(), Error, "experts_implementation grouped_mm ", refusal,
                  ". Use eager, batched_mm or auto");
  }
  return wanted;
}

at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends,
                          ExpertsImplementation implementation) {
  static const auto op = find_operator<Op>("phalanx::_grouped_linear");
  return op.call(x, weight, ends, static_cast<std::int64_t>(implementation));
}

at::Tensor grouped_linear_weight_grad(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& ends,
                                      ExpertsImplementation implementation) {
  static const auto op = find_operator<Op>("phalanx::_grouped_linear_weight_grad");
  return op.call(grad_y, x, ends, static_cast<std::int64_t>(implementation));
}

at::Tensor grouped_linear_meta(const at::Tensor& x, const at::Tensor& weight, const at::Tensor&,
                               std::int64_t) {
  return x.new_empty_symint({x.sym_size(0), weight.sym_size(1)});
}

at::Tensor grouped_linear_weight_grad_meta(const at::Tensor& grad_y, const at::Tensor& x,
                                           const at::Tensor& ends, std::int64_t) {
  return x.new_empty_symint({ends.sym_size(0), grad_y.sym_size(1), x.sym_size(1)});
}

}  // namespace phalanx
