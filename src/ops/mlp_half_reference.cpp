#include "ops/gated_mlp.h"
#include "ops/mlp_half.h"
#include "ops/rms_norm.h"

#include <ATen/TensorOperators.h>

namespace phalanx {

at::Tensor mlp_half_reference(const at::Tensor& x, const MlpWeights& weights, double norm_eps) {
  const at::Tensor n = rms_norm_reference(x, weights.norm, norm_eps);
  return x + gated_mlp_reference(n, {weights.gate, weights.up, weights.down, {}});
}

}  // namespace phalanx
