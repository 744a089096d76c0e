// The residual stream may be wider than the weights: under autocast x and the norm's weight stay fp32 while the products run
// in bf16. A half then normalises and adds in the dtype of x and multiplies in the dtype of the weights.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

namespace phalanx {

// x + a b in the dtype of x [T, H]; a [T, W] and b [W, H] share a dtype.
inline at::Tensor add_product(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b) {
  return x.scalar_type() == a.scalar_type() ? x.addmm(a, b) : x + a.mm(b);
}

}  // namespace phalanx
