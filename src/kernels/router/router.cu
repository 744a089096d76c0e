// The router's forward and backward pass. A warp holds the E logits of its token in registers; lane k holds what belongs to
// the token's k-th choice.
#include "kernels/common/launch.cuh"
#include "kernels/router/checks.h"
#include "kernels/router/router.h"
#include "kernels/router/warp_row.cuh"

namespace phalanx::kernels {
namespace {

constexpr int kTokensPerBlock = 8;

// What DeepSeek-V3's router adds to the sum of sigmoid scores, which can all be 0; softmax scores need nothing.
constexpr float kSigmoidSumFloor = 1e-20f;

__device__ std::int64_t token_of_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * kTokensPerBlock + threadIdx.x / kWarpSize;
}

// Divisor of the scores of a token; `score` is lane k's chosen one, 0 in lanes past K.
__device__ float divisor_of(const RouterRule& rule, float score) {
  const float floor = rule.sigmoid ? kSigmoidSumFloor : 0.0f;
  return rule.normalize ? floor + warp_sum(score) : 1.0f;
}

template <class T, int kPerLane>
__global__ void __launch_bounds__(kTokensPerBlock* kWarpSize) forward_kernel(RouterForwardParams p) {
  const std::int64_t token = token_of_warp();
  const int lane = threadIdx.x % kWarpSize;
  const auto [tokens, experts, top_k, _] = p.shape;
  if (token >= tokens) {
    return;
  }
  WarpRow<kPerLane> scores;
  scores.load_scores(p.rule.sigmoid, static_cast<const T*>(p.logits) + token * experts, experts, lane);
  int index = 0;
  if (p.replay != nullptr) {
    index = lane < top_k ? p.replay[token * top_k + lane] : 0;
  } else {
    warp_top_k(scores, experts, top_k, lane, [&](int k, int expert) { index = lane == k ? expert : index; });
  }
  float score = 0.0f;
  for (int k = 0; k < top_k; ++k) {
    const float chosen = scores.broadcast(__shfl_sync(kAllLanes, index, k));
    score = lane == k ? chosen : score;
  }
  const float weight = score / divisor_of(p.rule, score) * p.rule.scale;
  if (lane < top_k) {
    p.indices[token * top_k + lane] = index;
    static_cast<T*>(p.weights)[token * top_k + lane] = static_cast<T>(weight);
  }
}

// With s the scores, S their divisor and w_k = scale * s_k / S: ds_k = scale / S * (dw_k - sum_j dw_j s_j / S), without
// the normalisation ds_k = scale * dw_k. Then through the softmax, dx_e = s_e * (ds_e - sum_j ds_j s_j), or the sigmoid,
// dx_e = s_e * (1 - s_e) * ds_e, where ds is zero but for the chosen.
template <class T, int kPerLane>
__global__ void __launch_bounds__(kTokensPerBlock* kWarpSize) backward_kernel(RouterBackwardParams p) {
  const std::int64_t token = token_of_warp();
  const int lane = threadIdx.x % kWarpSize;
  const auto [tokens, experts, top_k, _] = p.shape;
  if (token >= tokens) {
    return;
  }
  WarpRow<kPerLane> scores;
  scores.load_scores(p.rule.sigmoid, static_cast<const T*>(p.logits) + token * experts, experts, lane);
  const bool chosen = lane < top_k;
  const int index = chosen ? p.indices[token * top_k + lane] : 0;
  const float grad_weight = chosen ? p.grad_weights[token * top_k + lane] : 0.0f;
  float score = 0.0f;
  for (int k = 0; k < top_k; ++k) {
    const float value = scores.broadcast(__shfl_sync(kAllLanes, index, k));
    score = lane == k ? value : score;
  }
  const float divisor = divisor_of(p.rule, score);
  const float mean = p.rule.normalize ? warp_sum(grad_weight * score / divisor) : 0.0f;
  const float grad_score = chosen ? p.rule.scale / divisor * (grad_weight - mean) : 0.0f;
  const float dot = p.rule.sigmoid ? 0.0f : warp_sum(grad_score * score);
  const float direct = p.rule.sigmoid ? score * (1.0f - score) * grad_score : score * grad_score;

  WarpRow<kPerLane> grad;
  if (p.grad_past != nullptr) {
    grad.load(static_cast<const T*>(p.grad_past) + token * experts, experts, lane, 0.0f);
  }
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const float past = p.grad_past != nullptr ? grad.values[j] : 0.0f;
    grad.values[j] = past + (p.rule.sigmoid ? 0.0f : -dot * scores.values[j]);
  }
  for (int k = 0; k < top_k; ++k) {
    grad.add(__shfl_sync(kAllLanes, index, k), lane, __shfl_sync(kAllLanes, direct, k));
  }
  grad.store(static_cast<T*>(p.grad_logits) + token * experts, experts, lane);
}

}  // namespace

void router_forward(const RouterForwardParams& p, cudaStream_t stream) {
  check_router_shape(p.shape);
  if (p.shape.tokens == 0) {
    return;
  }
  with_element(p.shape.element, [&]<class T>(T) {
    with_row_size(p.shape.experts, [&](auto per_lane) {
      forward_kernel<T, per_lane>
          <<<blocks_for(p.shape.tokens, kTokensPerBlock), kTokensPerBlock * kWarpSize, 0, stream>>>(p);
    });
  });
  check_launch("router_forward");
}

void router_backward(const RouterBackwardParams& p, cudaStream_t stream) {
  check_router_shape(p.shape);
  if (p.shape.tokens == 0) {
    return;
  }
  with_element(p.shape.element, [&]<class T>(T) {
    with_row_size(p.shape.experts, [&](auto per_lane) {
      backward_kernel<T, per_lane>
          <<<blocks_for(p.shape.tokens, kTokensPerBlock), kTokensPerBlock * kWarpSize, 0, stream>>>(p);
    });
  });
  check_launch("router_backward");
}

}  // namespace phalanx::kernels
