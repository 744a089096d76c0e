// RMSNorm over each head of q and k and the rotation by position, in one pass, on the GPU: launch contract.
//
// Legend: T tokens, h query heads, g key/value heads, d head size (1 to 512), D rotary dimensions (even, at most d).
//
// The heads of a token lie side by side; tokens may be further apart than that, as in the fused product of q, k and v. Everything
// is fp32 between loads and stores. Nothing is allocated, nothing waits for the device, equal inputs give equal bits. Launchers
// throw Error for a d out of range.
#pragma once
#include "kernels/common/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace phalanx::kernels {

struct QkShape {
  std::int64_t tokens;  // T
  int head_size;        // d
  int half_rotary;      // D / 2
  float eps;
  Element element;
};

struct RopeAngles {
  const float* cos;  // [T, D/2]
  const float* sin;  // [T, D/2]
};

// q or k. y = rotate(weight * x / sqrt(mean(x^2) + eps)), rounded once.
struct HeadsForward {
  const void* x;          // [T, heads, d]
  std::int64_t x_stride;  // values between tokens
  const void* weight;     // [d]; nullptr: no norm
  void* y;                // [T, heads, d], dense
  int heads;              // h or g
};
struct QkNormRopeForwardParams {
  QkShape shape;
  RopeAngles angles;
  HeadsForward q, k;
};
void qk_norm_rope_forward(const QkNormRopeForwardParams& params, cudaStream_t stream);

// The gradient of the same. `partials` has one sum of the weight's gradient per block; kernels/common/column_sum.h adds them up.
struct HeadsBackward {
  const void* grad_y;          // [T, heads, d], dense
  const void* x;               // [T, heads, d]
  std::int64_t x_stride;       // values between tokens
  const void* weight;          // [d]; nullptr: no norm
  void* grad_x;                // [T, heads, d]
  std::int64_t grad_x_stride;  // values between tokens
  float* partials;             // [qk_norm_rope_backward_blocks(T), d]; nullptr without weight
  int heads;                   // h or g
};
struct QkNormRopeBackwardParams {
  QkShape shape;
  RopeAngles angles;
  HeadsBackward q, k;
};
int qk_norm_rope_backward_blocks(std::int64_t tokens);
void qk_norm_rope_backward(const QkNormRopeBackwardParams& params, cudaStream_t stream);

}  // namespace phalanx::kernels
