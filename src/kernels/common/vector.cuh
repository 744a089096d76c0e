// Loads and stores of kWidth neighbouring values as one access of 2 to 16 bytes. Computed with in fp32.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace phalanx::kernels {

// Values in 16 bytes, the widest access of a thread.
template <class T>
inline constexpr int kVectorValues = 16 / sizeof(T);

// The type whose load or store is one instruction.
template <int kBytes>
using RawAccess = std::conditional_t<
    kBytes == 16, uint4,
    std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, std::uint32_t, std::uint16_t>>>;

// kWidth values of fp32 or bf16 in as few registers as they take in memory: two bf16 share a word.
template <class T, int kWidth>
class PackedValues {
 public:
  __device__ static PackedValues load(const T* source) {
    const Raw raw = *reinterpret_cast<const Raw*>(source);
    PackedValues result;
    std::memcpy(result.words_, &raw, sizeof(raw));
    return result;
  }

  __device__ static PackedValues rounded(const float (&values)[kWidth]) {
    PackedValues result;
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(result.words_, values, sizeof(values));
    } else if constexpr (kWidth == 1) {
      result.words_[0] = __bfloat16_as_ushort(__float2bfloat16_rn(values[0]));
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; i += 2) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(values[i], values[i + 1]);
        std::memcpy(&result.words_[i / 2], &pair, sizeof(pair));
      }
    }
    return result;
  }

  __device__ static PackedValues all(float value) {
    float values[kWidth];
#pragma unroll
    for (float& each : values) {
      each = value;
    }
    return rounded(values);
  }

  __device__ void store(T* target) const {
    Raw raw;
    std::memcpy(&raw, words_, sizeof(raw));
    __stwb(reinterpret_cast<Raw*>(target), raw);  // the plain assignment comes out as four stores in places
  }

  // NaN is left out.
  __device__ float largest() const {
    if constexpr (sizeof(Word) == 4 && !std::is_same_v<T, float>) {
      __nv_bfloat162 pairs[kWidth / 2];
      std::memcpy(pairs, words_, sizeof(words_));
#pragma unroll
      for (int i = 1; i < kWidth / 2; ++i) {
        pairs[0] = __hmax2(pairs[0], pairs[i]);
      }
      return static_cast<float>(__hmax(__low2bfloat16(pairs[0]), __high2bfloat16(pairs[0])));
    } else {
      float result = (*this)[0];
#pragma unroll
      for (int i = 1; i < kWidth; ++i) {
        result = fmaxf(result, (*this)[i]);
      }
      return result;
    }
  }

  __device__ float operator[](int i) const {
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(words_[i]);
    } else {
      const std::uint32_t pair = words_[i / 2];
      return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
    }
  }

 private:
  using Raw = RawAccess<kWidth * sizeof(T)>;
  using Word = std::conditional_t<sizeof(Raw) == 2, std::uint16_t, std::uint32_t>;
  Word words_[sizeof(Raw) / sizeof(Word)];
};

template <int kWidth, class T>
__device__ inline void load_values(const T* source, float (&values)[kWidth]) {
  const auto packed = PackedValues<T, kWidth>::load(source);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    values[i] = packed[i];
  }
}

template <int kWidth, class T>
__device__ inline void store_values(const float (&values)[kWidth], T* target) {
  PackedValues<T, kWidth>::rounded(values).store(target);
}

// Whether rows of `width` values can be accessed 16 bytes at a time, wherever all the pointers are.
template <class T, class... Pointers>
bool fits_vectors(std::int64_t width, const Pointers*... pointers) {
  return width % kVectorValues<T> == 0 && ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace phalanx::kernels
