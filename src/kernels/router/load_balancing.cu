// Statistics of the auxiliary loss over the tokens, and its gradient.
#include "kernels/common/launch.cuh"
#include "kernels/router/checks.h"
#include "kernels/router/router.h"
#include "kernels/router/warp_row.cuh"

namespace phalanx::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kTokensPerWarp = 8;
constexpr int kTokensPerBlock = kWarps * kTokensPerWarp;

// Softmax rounded to T, as Transformers' router hands it on.
template <class T, int kPerLane>
__device__ void load_rounded_softmax(WarpRow<kPerLane>& scores, const T* row, int experts, int lane) {
  scores.load_softmax(row, experts, lane);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    scores.values[j] = static_cast<float>(static_cast<T>(scores.values[j]));
  }
}

// Each warp walks its tokens, then the warps are added in order.
template <class T, int kPerLane>
__global__ void __launch_bounds__(kWarps* kWarpSize) statistics_kernel(LoadBalancingParams p) {
  __shared__ float sums[kWarps][2][kPerLane * kWarpSize];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const auto [tokens, experts, top_k, _] = p.shape;
  WarpRow<kPerLane> choices{}, totals{};
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTokensPerBlock + warp * kTokensPerWarp;
  for (int i = 0; i < kTokensPerWarp && first + i < tokens; ++i) {
    WarpRow<kPerLane> scores;
    load_rounded_softmax(scores, static_cast<const T*>(p.logits) + (first + i) * experts, experts, lane);
    warp_top_k(scores, experts, top_k, lane, [&](int, int expert) { choices.add(expert, lane, 1.0f); });
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      totals.values[j] += scores.values[j];
    }
  }
  choices.store(sums[warp][0], kPerLane * kWarpSize, lane);
  totals.store(sums[warp][1], kPerLane * kWarpSize, lane);
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * experts; i += kWarps * kWarpSize) {
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      sum += sums[w][i / experts][i % experts];
    }
    p.partials[static_cast<std::int64_t>(blockIdx.x) * 2 * experts + i] = sum;
  }
}

// Through the softmax: dx_e = s_e * (ds_e - sum_j ds_j s_j).
template <class T, int kPerLane>
__global__ void __launch_bounds__(kWarps* kWarpSize) backward_kernel(LoadBalancingGradParams p) {
  const int lane = threadIdx.x % kWarpSize, experts = p.shape.experts;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
  if (token >= p.shape.tokens) {
    return;
  }
  WarpRow<kPerLane> scores, grad;
  load_rounded_softmax(scores, static_cast<const T*>(p.logits) + token * experts, experts, lane);
  grad.load(p.grad_scores, experts, lane, 0.0f);
  float dot = 0.0f;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    dot += scores.values[j] * grad.values[j];
  }
  dot = warp_sum(dot);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    grad.values[j] = scores.values[j] * (grad.values[j] - dot);
  }
  grad.store(static_cast<T*>(p.grad_logits) + token * experts, experts, lane);
}

}  // namespace

int load_balancing_blocks(std::int64_t tokens) {
  return static_cast<int>(blocks_for(tokens, kTokensPerBlock));
}

void load_balancing_statistics(const LoadBalancingParams& p, cudaStream_t stream) {
  check_router_shape(p.shape);
  if (p.shape.tokens == 0) {
    return;
  }
  with_element(p.shape.element, [&]<class T>(T) {
    with_row_size(p.shape.experts, [&](auto per_lane) {
      statistics_kernel<T, per_lane>
          <<<load_balancing_blocks(p.shape.tokens), kWarps * kWarpSize, 0, stream>>>(p);
    });
  });
  check_launch("load_balancing_statistics");
}

void load_balancing_backward(const LoadBalancingGradParams& p, cudaStream_t stream) {
  check_router_shape(p.shape);
  if (p.shape.tokens == 0) {
    return;
  }
  with_element(p.shape.element, [&]<class T>(T) {
    with_row_size(p.shape.experts, [&](auto per_lane) {
      backward_kernel<T, per_lane><<<blocks_for(p.shape.tokens, kWarps), kWarps * kWarpSize, 0, stream>>>(p);
    });
  });
  check_launch("load_balancing_backward");
}

}  // namespace phalanx::kernels
