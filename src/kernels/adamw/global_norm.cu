// The Euclidean norm of many tensors together: a sum per chunk, then one block adds them up. Summed in fp64, in a fixed order.
#include "kernels/adamw/adamw.h"
#include "kernels/adamw/tensor_list.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"

namespace phalanx::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kFinalThreads = 1024;
constexpr int kUnitsAtOnce = 4;  // of a thread, so that enough loads are in flight

template <class T>
__device__ double sum_of_squares(const T* values, int count) {
  constexpr int kStride = kThreads * kUnit;
  double sum = 0.0;
  for (int begin = static_cast<int>(threadIdx.x) * kUnit; begin < count; begin += kStride * kUnitsAtOnce) {
    float units[kUnitsAtOnce][kUnit];
#pragma unroll
    for (int u = 0; u < kUnitsAtOnce; ++u) {
      const int at = begin + u * kStride;
      load_unit(values + at, count - at, units[u]);
    }
#pragma unroll
    for (const auto& unit : units) {
#pragma unroll
      for (const float value : unit) {
        sum = fma(static_cast<double>(value), static_cast<double>(value), sum);
      }
    }
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads) chunk_kernel(const __grid_constant__ GlobalNormParams p) {
  __shared__ double scratch[kMaxWarps][1];
  const std::int64_t chunk = blockIdx.x;
  const NormTensor tensor = entry_of_chunk(p.tensors, p.tensor_count, chunk);
  const std::int64_t begin = (chunk - tensor.span.first_chunk) * kTensorChunk;
  const auto count = static_cast<int>(min(kTensorChunk, tensor.span.elements - begin));
  double sum[1];
  if (tensor.element == Element::kBf16) {
    sum[0] = sum_of_squares(static_cast<const __nv_bfloat16*>(tensor.values) + begin, count);
  } else {
    sum[0] = sum_of_squares(static_cast<const float*>(tensor.values) + begin, count);
  }
  block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    p.partials[chunk] = sum[0];
  }
}

__global__ void __launch_bounds__(kFinalThreads)
    final_kernel(const double* partials, std::int64_t count, float* norm) {
  __shared__ double scratch[kMaxWarps][1];
  double sum[1] = {};
  for (std::int64_t i = threadIdx.x; i < count; i += kFinalThreads) {
    sum[0] += partials[i];
  }
  block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    *norm = static_cast<float>(sqrt(sum[0]));
  }
}

}  // namespace

void global_norm(const GlobalNormParams& p, cudaStream_t stream) {
  if (p.chunks > 0) {
    chunk_kernel<<<static_cast<unsigned>(p.chunks), kThreads, 0, stream>>>(p);
    check_launch("global_norm");
  }
  final_kernel<<<1, kFinalThreads, 0, stream>>>(p.partials, p.chunks, p.norm);
  check_launch("global_norm");
}

}  // namespace phalanx::kernels
