// Loads and stores of kWidth neighbouring values as one access, held in fp32.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace phalanx::kernels {

// Values in 16 bytes, the widest access of a thread.
template <class T>
inline constexpr int kVectorValues = 16 / sizeof(T);

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Packed {
  T values[kWidth];
};

template <int kWidth, class T>
__device__ inline void load_values(const T* source, float (&values)[kWidth]) {
  const auto packed = *reinterpret_cast<const Packed<T, kWidth>*>(source);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    values[i] = static_cast<float>(packed.values[i]);
  }
}

template <int kWidth, class T>
__device__ inline void store_values(const float (&values)[kWidth], T* target) {
  Packed<T, kWidth> packed;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    packed.values[i] = static_cast<T>(values[i]);
  }
  *reinterpret_cast<Packed<T, kWidth>*>(target) = packed;
}

// Whether rows of `width` values can be accessed 16 bytes at a time, wherever all the pointers are.
template <class T, class... Pointers>
bool fits_vectors(std::int64_t width, const Pointers*... pointers) {
  return width % kVectorValues<T> == 0 && ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace phalanx::kernels
