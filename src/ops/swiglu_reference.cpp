#include "ops/swiglu.h"

#include <ATen/TensorOperators.h>

namespace phalanx {

at::Tensor swiglu_reference(const at::Tensor& z) {
  const auto compute = z.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto halves = z.to(compute).chunk(2, /*dim=*/1);
  return (halves[0] * halves[0].sigmoid() * halves[1]).to(z.scalar_type());
}

}  // namespace phalanx
