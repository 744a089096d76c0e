// Sums over a warp and over a block, in an order that depends on the number of threads alone.
#pragma once
#include <cuda_runtime.h>

namespace phalanx::kernels {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kWarpSize = 32;
inline constexpr int kMaxWarps = 32;  // of a block

// Over groups of kLanes neighbouring lanes; every lane gets the sum of its group.
template <int kLanes = kWarpSize, class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// Sums kCount values over all threads of a block of whole warps; every thread gets all sums. `scratch` is shared memory that
// nobody reads before the next barrier: calls in a loop alternate between two.
template <int kCount, class T>
__device__ inline void block_sum(T (&values)[kCount], T (&scratch)[kMaxWarps][kCount]) {
#pragma unroll
  for (T& value : values) {
    value = warp_sum(value);
  }
  if (blockDim.x == kWarpSize) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      scratch[threadIdx.x / kWarpSize][i] = values[i];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = warp_sum(lane < warps ? scratch[lane][i] : T(0));
  }
}

}  // namespace phalanx::kernels
