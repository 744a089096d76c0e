#include "ops/grouped_linear.h"

#include "core/error.h"
#include "ops/fused_experts.h"
#include "ops/operator.h"

namespace phalanx {
namespace {

using Op = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, std::int64_t);

// Why ATen's grouped product cannot take these weights; empty when it can.
std::string refusal_of_grouped_mm(const ExpertsSituation& s) {
  if (s.dtype != at::kFloat && s.dtype != at::kBFloat16) {
    return concat("has no kernel for ", s.dtype);
  }
  const auto bytes = static_cast<std::int64_t>(c10::elementSize(s.dtype));
  if (s.hidden * bytes % 16 != 0 || s.width * bytes % 16 != 0) {
    return concat("needs rows of a multiple of 16 bytes; hidden size ", s.hidden, " and expert width ",
                  s.width, " in ", s.dtype, " are not");
  }
  return "";
}

// The same for the own kernels.
std::string refusal_of_phalanx(const ExpertsSituation& s) {
  if (!s.own_kernels) {
    return "runs on Hopper GPUs (compute capability 9.0) with an engine built for CUDA";
  }
  if (s.dtype != at::kBFloat16) {
    return concat("computes in bfloat16; the weights are ", s.dtype);
  }
  if (s.hidden % 8 != 0 || s.width % 8 != 0 || s.experts > 512) {
    return concat("needs widths that are multiples of 8 and at most 512 experts; these are ", s.experts,
                  " experts of width ", s.width, ", hidden size ", s.hidden);
  }
  return "";
}

ExpertsChoice choose_automatically(const ExpertsSituation& s) {
  using enum ExpertsImplementation;
  if (s.on_cpu) {
    return {kEager, "on the CPU"};
  }
  const std::string own = refusal_of_phalanx(s), aten = refusal_of_grouped_mm(s);
  if (own.empty() && s.hidden % 64 == 0 && s.width % 64 == 0) {
    return {kPhalanx, concat("own kernels for Hopper, widths ", s.hidden, " and ", s.width)};
  }
  const std::string not_own = own.empty()
                                  ? concat("widths ", s.hidden, " and ", s.width, " are not multiples of 64")
                                  : "phalanx " + own;
  return aten.empty() ? ExpertsChoice{kGroupedMm, not_own}
                      : ExpertsChoice{kEager, concat(not_own, "; grouped_mm ", aten)};
}

}  // namespace

ExpertsChoice choose_experts_implementation(ExpertsImplementation wanted, const ExpertsSituation& situation) {
  using enum ExpertsImplementation;
  if (wanted == kAuto) {
    return choose_automatically(situation);
  }
  const std::string refusal = wanted == kGroupedMm ? refusal_of_grouped_mm(situation)
                              : wanted == kPhalanx ? refusal_of_phalanx(situation)
                                                   : "";
  PHALANX_CHECK(refusal.empty(), Error, "experts_implementation ", experts_implementation_name(wanted), " ",
                refusal, ". Use eager, batched_mm or auto");
  return {wanted, "as asked for"};
}

ExpertsSituation experts_situation(const at::Tensor& gate_up) {
  PHALANX_CHECK(gate_up.dim() == 3 && gate_up.size(1) % 2 == 0, Error, "experts: gate_up has shape ",
                gate_up.sym_sizes(), "; expected [experts, 2 * width, hidden]");
  ExpertsSituation situation;
  situation.on_cpu = gate_up.is_cpu();
#ifdef PHALANX_CUDA
  situation.own_kernels = gate_up.is_cuda() && has_hopper_kernels(gate_up.device());
#endif
  situation.dtype = gate_up.scalar_type();
  situation.experts = gate_up.size(0);
  situation.hidden = gate_up.size(2);
  situation.width = gate_up.size(1) / 2;
  return situation;
}

ExpertsImplementation choose_experts_implementation(ExpertsImplementation wanted, const at::Tensor& gate_up) {
  return choose_experts_implementation(wanted, experts_situation(gate_up)).implementation;
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
