#include "ops/rms_norm.h"

#include <ATen/TensorOperators.h>

namespace phalanx {

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto compute = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor wide = x.to(compute);
  const at::Tensor variance = wide.pow(2).mean(-1, /*keepdim=*/true);
  return weight * (wide * (variance + eps).rsqrt()).to(x.scalar_type());
}

}  // namespace phalanx
