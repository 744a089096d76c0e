// The router's gradient <U, a> of each row and the weighted activation, in one pass: one warp per row.
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/row_part.cuh"
#include "kernels/swiglu/swiglu.h"

namespace phalanx::kernels {
namespace {

constexpr int kRowsPerBlock = 8;
constexpr int kVectors = 3;  // of a lane at a time: rows of 768 bf16 values at once

template <class T, int kWidth>
__global__ void __launch_bounds__(kRowsPerBlock* kWarpSize) weigh_kernel(WeighActivationParams p) {
  using Part = RowPart<T, kWidth, kVectors>;
  const std::int64_t row = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.y;
  if (row >= p.rows) {
    return;
  }
  const std::int32_t choice = p.choices[row];
  const float weight = static_cast<float>(static_cast<const T*>(p.weights)[choice]);
  T* activation = static_cast<T*>(p.activation) + row * p.width;
  const T* grad = static_cast<const T*>(p.grad_activation) + row * p.width;
  float dot = 0.0f;
  for (std::int64_t begin = 0; begin < p.width; begin += kWarpSize * kWidth * kVectors) {
    const int left = static_cast<int>(p.width - begin);
    Part a, g;
    a.load(activation + begin, left);
    g.load(grad + begin, left);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float weighted[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        dot += a.value(v, i) * g.value(v, i);
        weighted[i] = weight * a.value(v, i);
      }
      if (Part::at(v) < left) {
        store_values<kWidth>(weighted, activation + begin + Part::at(v));
      }
    }
  }
  dot = warp_sum(dot);
  if (threadIdx.x == 0) {
    p.grad_weights[choice] = dot;
  }
}

}  // namespace

void weigh_activation(const WeighActivationParams& p, cudaStream_t stream) {
  if (p.rows == 0) {
    return;
  }
  with_element(p.element, [&]<class T>(T) {
    const bool wide = fits_vectors<T>(p.width, p.activation, p.grad_activation);
    const auto kernel = wide ? weigh_kernel<T, kVectorValues<T>> : weigh_kernel<T, 1>;
    const auto blocks = static_cast<unsigned>(blocks_for(p.rows, kRowsPerBlock));
    kernel<<<blocks, dim3(kWarpSize, kRowsPerBlock), 0, stream>>>(p);
  });
  check_launch("weigh_activation");
}

}  // namespace phalanx::kernels
