// Copies of rows into the order of experts and their weighted sum back per token. Both are bound by memory: 16 bytes a load
// where the width allows it.
#include "kernels/common/launch.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/permute/permute.h"

namespace phalanx::kernels {
namespace {

constexpr int kThreads = 256;

// One block per token, each value is read once.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) gather_kernel(GatherRowsParams p) {
  const std::int64_t token = blockIdx.x;
  const std::int32_t* rows = p.rows + token * p.top_k;
  const T* weights = p.weights == nullptr ? nullptr : static_cast<const T*>(p.weights) + token * p.top_k;
  for (std::int64_t i = threadIdx.x * kWidth; i < p.width; i += kThreads * kWidth) {
    float values[kWidth];
    load_values<kWidth>(static_cast<const T*>(p.x) + token * p.width + i, values);
#pragma unroll 8
    for (int k = 0; k < p.top_k; ++k) {
      const float weight = weights == nullptr ? 1.0f : static_cast<float>(weights[k]);
      float weighted[kWidth];
#pragma unroll
      for (int v = 0; v < kWidth; ++v) {
        weighted[v] = weight * values[v];
      }
      store_values<kWidth>(weighted, static_cast<T*>(p.out) + std::int64_t{rows[k]} * p.width + i);
    }
  }
}

// One block per token.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) combine_kernel(CombineRowsParams p) {
  const std::int64_t token = blockIdx.x;
  const std::int32_t* rows = p.rows + token * p.top_k;
  const T* weights = p.weights == nullptr ? nullptr : static_cast<const T*>(p.weights) + token * p.top_k;
  for (std::int64_t i = threadIdx.x * kWidth; i < p.width; i += kThreads * kWidth) {
    float sum[kWidth] = {};
    if (p.residual != nullptr) {
      load_values<kWidth>(static_cast<const T*>(p.residual) + token * p.width + i, sum);
    }
#pragma unroll 8
    for (int k = 0; k < p.top_k; ++k) {
      const float weight = weights == nullptr ? 1.0f : static_cast<float>(weights[k]);
      float values[kWidth];
      load_values<kWidth>(static_cast<const T*>(p.values) + std::int64_t{rows[k]} * p.width + i, values);
#pragma unroll
      for (int v = 0; v < kWidth; ++v) {
        sum[v] += weight * values[v];
      }
    }
    store_values<kWidth>(sum, static_cast<T*>(p.out) + token * p.width + i);
  }
}

}  // namespace

void gather_rows(const GatherRowsParams& p, cudaStream_t stream) {
  if (p.tokens == 0) {
    return;
  }
  with_element(p.element, [&]<class T>(T) {
    const bool wide = fits_vectors<T>(p.width, p.x, p.out);
    const auto kernel = wide ? gather_kernel<T, kVectorValues<T>> : gather_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(p.tokens), kThreads, 0, stream>>>(p);
  });
  check_launch("gather_rows");
}

void combine_rows(const CombineRowsParams& p, cudaStream_t stream) {
  if (p.tokens == 0) {
    return;
  }
  with_element(p.element, [&]<class T>(T) {
    const bool wide = fits_vectors<T>(p.width, p.values, p.residual, p.out);
    const auto kernel = wide ? combine_kernel<T, kVectorValues<T>> : combine_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(p.tokens), kThreads, 0, stream>>>(p);
  });
  check_launch("combine_rows");
}

}  // namespace phalanx::kernels
