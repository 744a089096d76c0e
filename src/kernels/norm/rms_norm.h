// RMSNorm on the GPU: launch contract.
//
// Legend: T rows, H width of a row (1 to 16,384).
//
// Everything is fp32 between loads and stores. Nothing is allocated, nothing waits for the device, equal inputs give equal
// bits. Launchers throw Error for an H out of range.
#pragma once
#include "kernels/common/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace phalanx::kernels {

// y = weight * (x * rstd rounded to the element), rstd = 1 / sqrt(mean(x^2) + eps)
struct RmsNormForwardParams {
  const void* x;       // [T, H]
  const void* weight;  // [H]
  void* y;             // [T, H]
  float* rstd;         // [T]
  std::int64_t rows;   // T
  std::int64_t width;  // H
  float eps;
  Element element;
};
void rms_norm_forward(const RmsNormForwardParams& params, cudaStream_t stream);

// With n = x * rstd and g = grad_y * weight: grad_x = residual_grad + rstd * (g - n * mean(g * n)), and each row of `partials`
// is the sum of grad_y * n over the rows of one block; kernels/common/column_sum.h adds them to the weight's gradient.
struct RmsNormBackwardParams {
  const void* grad_y;         // [T, H]
  const void* x;              // [T, H]
  const void* weight;         // [H]
  const float* rstd;          // [T]
  const void* residual_grad;  // [T, H]; nullptr: 0
  void* grad_x;               // [T, H]
  float* partials;            // [rms_norm_backward_blocks(params), H]
  std::int64_t rows;          // T
  std::int64_t width;         // H
  Element element;
};
int rms_norm_backward_blocks(const RmsNormBackwardParams& params);  // of rows, width and element alone
void rms_norm_backward(const RmsNormBackwardParams& params, cudaStream_t stream);

}  // namespace phalanx::kernels
