#include "ops/experts.h"
#include "ops/swiglu.h"

#include <ATen/TensorOperators.h>

namespace phalanx {

at::Tensor experts_reference(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& weights,
                             const ExpertWeights& experts) {
  const auto compute = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor out = x.to(compute).mul(0);
  for (std::int64_t expert = 0; expert < experts.gate_up.size(0); ++expert) {
    const at::Tensor y =
        swiglu_reference(x.matmul(experts.gate_up[expert].t())).matmul(experts.down[expert].t());   // [T, H]
    const at::Tensor weight = (weights.to(compute) * indices.eq(expert)).sum(1, /*keepdim=*/true);  // [T, 1]
    out = out + weight * y.to(compute);
  }
  return out.to(x.scalar_type());
}

}  // namespace phalanx
