// The logits of one token in a warp's registers: lane l holds the experts l, l + 32, l + 64, ...
//
// kPerLane = ceil(E / 32) is a template parameter, so that the row stays in registers.
#pragma once
#include "kernels/common/reduce.cuh"

#include <cuda_bf16.h>

#include <type_traits>

namespace phalanx::kernels {

template <int kPerLane>
struct WarpRow {
  float values[kPerLane];

  __device__ static int expert(int j, int lane) { return j * kWarpSize + lane; }

  template <class T>
  __device__ void load(const T* row, int experts, int lane, float beyond) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      values[j] = expert(j, lane) < experts ? static_cast<float>(row[expert(j, lane)]) : beyond;
    }
  }

  template <class T>
  __device__ void store(T* row, int experts, int lane) const {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (expert(j, lane) < experts) {
        row[expert(j, lane)] = static_cast<T>(values[j]);
      }
    }
  }

  // Logits become scores; experts past E get 0. A NaN among the logits makes all scores of a softmax NaN.
  template <class T>
  __device__ void load_softmax(const T* row, int experts, int lane) {
    load(row, experts, lane, -INFINITY);
    float largest = values[0];
#pragma unroll
    for (int j = 1; j < kPerLane; ++j) {
      largest = fmaxf(largest, values[j]);
    }
    largest = warp_max(largest);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      values[j] = expert(j, lane) < experts ? expf(values[j] - largest) : 0.0f;
      sum += values[j];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      values[j] = values[j] / sum;
    }
  }

  template <class T>
  __device__ void load_sigmoid(const T* row, int experts, int lane) {
    load(row, experts, lane, -INFINITY);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      values[j] = 1.0f / (1.0f + expf(-values[j]));
    }
  }

  template <class T>
  __device__ void load_scores(bool sigmoid, const T* row, int experts, int lane) {
    sigmoid ? load_sigmoid(row, experts, lane) : load_softmax(row, experts, lane);
  }

  // The value of one expert in all lanes.
  __device__ float broadcast(int expert_index) const {
    float value = 0.0f;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      value = expert_index / kWarpSize == j ? values[j] : value;
    }
    return __shfl_sync(kAllLanes, value, expert_index % kWarpSize);
  }

  __device__ void add(int expert_index, int lane, float value) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      values[j] += expert(j, lane) == expert_index ? value : 0.0f;
    }
  }
};

// Calls take(k, expert) in all lanes for the k-th largest value, k = 0 .. top_k - 1: of equals the lower index first, NaN
// last. Values must not be negative: their bits then sort as they do.
template <int kPerLane, class Take>
__device__ inline void warp_top_k(const WarpRow<kPerLane>& row, int experts, int top_k, int lane,
                                  const Take& take) {
  unsigned keys[kPerLane];  // 0 taken or past E, 1 NaN, else bits of the value + 2
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const unsigned key = isnan(row.values[j]) ? 1u : __float_as_uint(row.values[j]) + 2u;
    keys[j] = row.expert(j, lane) < experts ? key : 0u;
  }
  for (int k = 0; k < top_k; ++k) {
    unsigned best = 0;
    int expert = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (keys[j] > best) {
        best = keys[j];
        expert = row.expert(j, lane);
      }
    }
    const unsigned largest = __reduce_max_sync(kAllLanes, best);
    const unsigned chosen = __reduce_min_sync(kAllLanes, best == largest ? expert : ~0u);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      keys[j] = row.expert(j, lane) == chosen ? 0u : keys[j];
    }
    take(k, static_cast<int>(chosen));
  }
}

// Calls run(std::integral_constant<int, kPerLane>) for the smallest instantiated row that holds E experts.
template <class Run>
void with_row_size(int experts, const Run& run) {
  if (experts <= 64) {
    run(std::integral_constant<int, 2>{});
  } else if (experts <= 128) {
    run(std::integral_constant<int, 4>{});
  } else if (experts <= 256) {
    run(std::integral_constant<int, 8>{});
  } else {
    run(std::integral_constant<int, 16>{});
  }
}

}  // namespace phalanx::kernels
