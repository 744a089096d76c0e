#include "ops/adamw.h"

#include "core/error.h"
#include "core/moment_code.h"
#include "ops/operator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>

namespace phalanx {
namespace {

using AdamW = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                   at::TensorList, at::TensorList, at::ArrayRef<double>, at::IntArrayRef, double, double,
                   double, double, std::int64_t, double, bool, std::int64_t);
using Norm = at::Tensor(at::TensorList);

void check_companion(const char* name, std::size_t index, const at::Tensor& parameter,
                     const at::Tensor& tensor, std::initializer_list<at::ScalarType> dtypes) {
  bool allowed = false;
  for (const at::ScalarType dtype : dtypes) {
    allowed = allowed || tensor.scalar_type() == dtype;
  }
  PHALANX_CHECK(allowed && tensor.sizes() == parameter.sizes() && tensor.is_contiguous(), Error,
                "adamw: ", name, " of parameter ", index, " is ", tensor.scalar_type(), " ", tensor.sizes(),
                ", strides ", tensor.strides(), "; expected ", *dtypes.begin(), " ", parameter.sizes(),
                ", contiguous");
}

void check_moments(const AdamWTensors& tensors, std::size_t i, at::ScalarType dtype) {
  const at::Tensor& parameter = tensors.parameters[i];
  // All parameters keep their moments alike.
  at::ScalarType moments = tensors.exp_avg[0].scalar_type();
  if (dtype == at::kDouble || (moments != at::kBFloat16 && moments != at::kByte)) {
    moments = dtype == at::kDouble ? at::kDouble : at::kFloat;
  }
  check_companion("exp_avg", i, parameter, tensors.exp_avg[i], {moments});
  check_companion("exp_avg_sq", i, parameter, tensors.exp_avg_sq[i], {moments});
  PHALANX_CHECK(moments != at::kByte || (tensors.exp_avg[i].storage_offset() % 8 == 0 &&
                                         tensors.exp_avg_sq[i].storage_offset() % 8 == 0),
                Error, "adamw: the 8-bit moments of parameter ", i, " are not aligned to 8 bytes");
  const std::size_t scales = moments == at::kByte ? tensors.parameters.size() : 0;
  PHALANX_CHECK(tensors.exp_avg_scale.size() == scales && tensors.exp_avg_sq_scale.size() == scales, Error,
                "adamw: ", tensors.exp_avg_scale.size(), " and ", tensors.exp_avg_sq_scale.size(),
                " scales of moments; expected ", scales, " beside ", moments, " moments");
  for (const Tensors* list : {&tensors.exp_avg_scale, &tensors.exp_avg_sq_scale}) {
    PHALANX_CHECK(list->empty() || ((*list)[i].scalar_type() == at::kByte && (*list)[i].is_contiguous() &&
                                    (*list)[i].numel() == moment_blocks(parameter.numel())),
                  Error, "adamw: the scales of parameter ", i, " are ", (*list)[i].scalar_type(), " ",
                  (*list)[i].sizes(), "; expected uint8 [", moment_blocks(parameter.numel()), "]");
  }
}

void check_parameter(const AdamWTensors& tensors, std::size_t i, bool stochastic_rounding) {
  const at::Tensor& parameter = tensors.parameters[i];
  const at::ScalarType dtype = parameter.scalar_type();
  PHALANX_CHECK(dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16, Error,
                "adamw: parameter ", i, " is ", dtype, "; expected fp32, fp64 or bf16");
  PHALANX_CHECK(parameter.is_contiguous(), Error, "adamw: parameter ", i, " of shape ", parameter.sizes(),
                " has strides ", parameter.strides(), "; make it contiguous");
  if (dtype == at::kBFloat16) {
    PHALANX_CHECK(stochastic_rounding != !tensors.master.empty(), Error, "adamw: parameter ", i,
                  " is bf16; give either fp32 master copies or stochastic rounding");
    check_companion("gradient", i, parameter, tensors.gradients[i], {at::kBFloat16, at::kFloat});
  } else {
    check_companion("gradient", i, parameter, tensors.gradients[i], {dtype});
  }
  check_moments(tensors, i, dtype);
  PHALANX_CHECK(tensors.positions[i] >= 0 && tensors.positions[i] >> kAdamWPositionBits == 0, Error,
                "adamw: parameter ", i, " has position ", tensors.positions[i], "; expected [0, 2^",
                kAdamWPositionBits, ")");
  if (!tensors.master.empty()) {
    PHALANX_CHECK(dtype == at::kBFloat16, Error, "adamw: parameter ", i, " is ", dtype,
                  " and has a master copy; only bf16 parameters take one");
    check_companion("master copy", i, parameter, tensors.master[i], {at::kFloat});
  }
}

void check_arguments(const AdamWTensors& tensors, const AdamWStep& step) {
  const std::size_t count = tensors.parameters.size();
  PHALANX_CHECK(
      tensors.gradients.size() == count && tensors.exp_avg.size() == count &&
          tensors.exp_avg_sq.size() == count && tensors.weight_decay.size() == count &&
          tensors.positions.size() == count && (tensors.master.empty() || tensors.master.size() == count),
      Error, "adamw: ", count, " parameters, but ", tensors.gradients.size(), " gradients, ",
      tensors.exp_avg.size(), " and ", tensors.exp_avg_sq.size(), " states, ", tensors.weight_decay.size(),
      " weight decays, ", tensors.positions.size(), " positions, ", tensors.master.size(), " master copies");
  PHALANX_CHECK(step.step >= 1, Error, "adamw: step ", step.step, "; steps are counted from 1");
  for (std::size_t i = 0; i < count; ++i) {
    check_parameter(tensors, i, step.stochastic_rounding);
  }
}

}  // namespace

void adamw_(const AdamWTensors& tensors, const AdamWStep& step) {
  check_arguments(tensors, step);
  if (tensors.parameters.empty()) {
    return;
  }
  static const auto op = find_operator<AdamW>("phalanx::_adamw_");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.call(tensors.parameters, tensors.gradients, tensors.exp_avg, tensors.exp_avg_sq, tensors.exp_avg_scale,
          tensors.exp_avg_sq_scale, tensors.master, tensors.weight_decay, tensors.positions,
          step.learning_rate, step.beta1, step.beta2, step.eps, step.step, step.gradient_scale,
          step.stochastic_rounding, static_cast<std::int64_t>(step.seed));
  // A graph that saved the old values must fail in backward instead of using the new ones.
  for (const at::Tensor& parameter : tensors.parameters) {
    parameter.unsafeGetTensorImpl()->bump_version();
  }
}

at::Tensor global_norm(const Tensors& tensors) {
  if (tensors.empty()) {
    return at::zeros({}, at::TensorOptions().dtype(at::kFloat));
  }
  static const auto op = find_operator<Norm>("phalanx::_global_norm");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(tensors);
}

}  // namespace phalanx
