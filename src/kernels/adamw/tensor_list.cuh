// The device's side of tensor_list.h.
#pragma once
#include "kernels/adamw/tensor_list.h"
#include "kernels/common/vector.cuh"

namespace phalanx::kernels {

// The entry whose tensor holds the chunk: the last one that does not begin after it. A tensor without elements has no chunk, and
// the entry behind it the same first one, so that it is never the last.
template <class Entry>
__device__ const Entry& entry_of_chunk(const Entry* entries, int count, std::int64_t chunk) {
  int low = 0, high = count;  // the entry is in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (entries[middle].span.first_chunk <= chunk ? low : high) = middle;
  }
  return entries[low];
}

// Accesses a run of kUnit neighbouring values: 16 bytes at a time where it is whole and aligned, else one by one.
inline constexpr int kUnit = 8;

template <class T>
__device__ bool is_whole(const T* run, int count) {
  return count >= kUnit && reinterpret_cast<std::uintptr_t>(run) % 16 == 0;
}

template <class T>
__device__ void load_unit(const T* run, int count, float (&values)[kUnit]) {
  constexpr int kPerVector = kVectorValues<T>;
  __builtin_assume(__isGlobal(run));  // which the compiler does not know of a pointer read from memory
  if (is_whole(run, count)) {
#pragma unroll
    for (int i = 0; i < kUnit; i += kPerVector) {
      const auto vector = PackedValues<T, kPerVector>::load(run + i);
#pragma unroll
      for (int j = 0; j < kPerVector; ++j) {
        values[i + j] = vector[j];
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    values[i] = i < count ? static_cast<float>(run[i]) : 0.0f;
  }
}

// Rounds to nearest.
template <class T>
__device__ void store_unit(const float (&values)[kUnit], T* run, int count) {
  constexpr int kPerVector = kVectorValues<T>;
  __builtin_assume(__isGlobal(run));
  if (is_whole(run, count)) {
#pragma unroll
    for (int i = 0; i < kUnit; i += kPerVector) {
      float part[kPerVector];
#pragma unroll
      for (int j = 0; j < kPerVector; ++j) {
        part[j] = values[i + j];
      }
      store_values<kPerVector>(part, run + i);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    if (i < count) {
      run[i] = static_cast<T>(values[i]);
    }
  }
}

}  // namespace phalanx::kernels
