// Loads and stores of kWidth neighbouring values as one access, held in fp32.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

namespace phalanx::kernels {

// Values in 16 bytes, the widest access of a thread.
template <class T>
inline constexpr int kVectorValues = 16 / sizeof(T);

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Packed {
  T values[kWidth];
};

// One store instruction, whatever else a thread stores: left to itself, the compiler splits the stores of a thread that makes
// several into members of 2 or 4 bytes.
template <class T, int kWidth>
__device__ inline void store_packed(const Packed<T, kWidth>& packed, T* target) {
  constexpr int kBytes = sizeof(packed);
  if constexpr (kBytes == 16) {
    std::uint32_t w[4];
    memcpy(w, &packed, kBytes);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(w[0]), "r"(w[1]), "r"(w[2]),
                 "r"(w[3])
                 : "memory");
  } else if constexpr (kBytes == 8) {
    std::uint32_t w[2];
    memcpy(w, &packed, kBytes);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(target), "r"(w[0]), "r"(w[1]) : "memory");
  } else {
    *reinterpret_cast<Packed<T, kWidth>*>(target) = packed;
  }
}

// The same in as few registers as in memory: the compiler gives each 16-bit member of a struct a register of its own, so two bf16
// share a word.
template <class T, int kWidth>
class alignas(sizeof(T) * kWidth) PackedValues {
 public:
  __device__ static PackedValues load(const T* source) {
    return *reinterpret_cast<const PackedValues*>(source);
  }

  __device__ static PackedValues all(float value) {
    PackedValues result;
#pragma unroll
    for (Word& word : result.words_) {
      if constexpr (kPairs) {
        const std::uint32_t bits = __bfloat16_as_ushort(static_cast<T>(value));
        word = bits << 16 | bits;
      } else {
        word = static_cast<T>(value);
      }
    }
    return result;
  }

  __device__ float operator[](int i) const {
    if constexpr (kPairs) {
      const std::uint32_t pair = words_[i / 2];
      return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
    } else {
      return static_cast<float>(words_[i]);
    }
  }

 private:
  static constexpr bool kPairs = sizeof(T) == 2 && kWidth % 2 == 0;
  using Word = std::conditional_t<kPairs, std::uint32_t, T>;
  Word words_[kPairs ? kWidth / 2 : kWidth];
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
  store_packed(packed, target);
}

// Whether rows of `width` values can be accessed 16 bytes at a time, wherever all the pointers are.
template <class T, class... Pointers>
bool fits_vectors(std::int64_t width, const Pointers*... pointers) {
  return width % kVectorValues<T> == 0 && ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace phalanx::kernels
