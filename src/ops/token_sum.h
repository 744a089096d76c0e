// The gradient of a weight with few rows: a sum over tokens that has the same bits on any number of threads.
#pragma once
#include <ATen/core/Tensor.h>

namespace phalanx {

// sum over t of grad_y[t] x[t]^T. grad_y [T, N], x [T, H] -> [N, H].
at::Tensor sum_over_tokens(const at::Tensor& grad_y, const at::Tensor& x);

}  // namespace phalanx
