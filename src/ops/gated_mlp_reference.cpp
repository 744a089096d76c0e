#include "ops/gated_mlp.h"

#include <ATen/TensorOperators.h>

namespace phalanx {

at::Tensor gated_mlp_reference(const at::Tensor& n, const GatedMlpWeights& weights) {
  const at::Tensor gate = n.matmul(weights.gate.weight.t()), up = n.matmul(weights.up.weight.t());
  const at::Tensor y = (gate * gate.sigmoid() * up).matmul(weights.down.weight.t());
  return weights.output_gate.defined() ? n.matmul(weights.output_gate.t()).sigmoid() * y : y;
}

}  // namespace phalanx
