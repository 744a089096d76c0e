#include "ops/mlp_half.h"
#include "ops/rms_norm.h"

#include <ATen/TensorOperators.h>

namespace phalanx {

at::Tensor mlp_half_reference(const at::Tensor& x, const MlpWeights& weights, double norm_eps) {
  const at::Tensor n = rms_norm_reference(x, weights.norm, norm_eps);
  const at::Tensor gate = n.matmul(weights.gate.weight.t()), up = n.matmul(weights.up.weight.t());
  return x + (gate * gate.sigmoid() * up).matmul(weights.down.weight.t());
}

}  // namespace phalanx
