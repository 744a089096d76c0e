#include "ops/qk_norm_rope.h"
#include "ops/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

namespace phalanx {
namespace {

at::Tensor norm_rope(const at::Tensor& x, const OptionalTensor& norm, const QkNormRopeInputs& in) {
  const auto compute = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor wide = x.to(compute);
  const at::Tensor normed = norm.has_value() ? rms_norm_reference(wide, norm->to(compute), in.eps) : wide;
  const std::int64_t half = in.cos.size(1);
  const at::Tensor first = normed.slice(2, 0, half), second = normed.slice(2, half, 2 * half);
  const at::Tensor cos = in.cos.unsqueeze(1), sin = in.sin.unsqueeze(1);  // [T, 1, D/2]
  return at::cat({first * cos - second * sin, second * cos + first * sin, normed.slice(2, 2 * half)}, 2)
      .to(x.scalar_type());
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_reference(const QkNormRopeInputs& in) {
  return {norm_rope(in.q, in.q_norm, in), norm_rope(in.k, in.k_norm, in)};
}

}  // namespace phalanx
