#include "kernels/common/column_sum.h"
#include "kernels/common/launch.cuh"

namespace phalanx::kernels {
namespace {

constexpr int kColumns = 32;  // of a block: one 128-byte line per row
constexpr int kLanes = 32;    // threads per column; lane l adds the rows l, l + 32, ...

template <class T>
__global__ void __launch_bounds__(kColumns* kLanes) column_sum_kernel(ColumnSumParams p) {
  __shared__ float sums[kLanes][kColumns + 1];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < p.width) {
#pragma unroll 4
    for (std::int64_t row = threadIdx.y; row < p.rows; row += kLanes) {
      sum += p.partials[row * p.width + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < p.width) {
    float total = 0.0f;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      total += sums[lane][threadIdx.x];
    }
    static_cast<T*>(p.out)[column] = static_cast<T>(total);
  }
}

}  // namespace

void column_sum(const ColumnSumParams& p, cudaStream_t stream) {
  if (p.width == 0) {
    return;
  }
  with_element(p.element, [&]<class T>(T) {
    const auto blocks = static_cast<unsigned>(blocks_for(p.width, kColumns));
    column_sum_kernel<T><<<blocks, dim3(kColumns, kLanes), 0, stream>>>(p);
  });
  check_launch("column_sum");
}

}  // namespace phalanx::kernels
