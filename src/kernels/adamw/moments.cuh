// Moments of AdamW as they are stored, read into fp32 and written back: a thread has a run of kUnit neighbouring elements. The
// counterpart of ops/cpu/moments.h, to the bit.
#pragma once
#include "core/moment_code.h"
#include "core/philox.h"
#include "kernels/adamw/adamw.h"
#include "kernels/adamw/tensor_list.cuh"

namespace phalanx::kernels {

// A run of neighbouring elements of one parameter, `at` a multiple of kUnit, and how many of them there are: kUnit, less at the end of
// the parameter, none or a negative number behind it.
struct Run {
  std::int64_t at;
  int count;
};

static_assert(kUnit == 8, "a random block has 8 numbers of 16 bits");
__device__ inline PhiloxBlock random_of(const Run& run, std::uint64_t seed, std::uint64_t stream) {
  return philox_block(seed, stream, static_cast<std::uint64_t>(run.at / kUnit));
}
__device__ inline std::uint32_t random16(const PhiloxBlock& random, int i) {
  return i % 2 == 0 ? random[i / 2] & 0xffffu : random[i / 2] >> 16;
}

// Rounds to a bf16 number, up with the probability of the cut-off fraction.
__device__ inline float round_stochastically(float value, std::uint32_t random) {
  return isfinite(value) ? __uint_as_float((__float_as_uint(value) + random) & 0xffff0000u) : value;
}

__device__ inline void store_stochastically(const float (&values)[kUnit], __nv_bfloat16* to, const Run& run,
                                            const PhiloxBlock& random) {
  float rounded[kUnit];
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    rounded[i] = round_stochastically(values[i], random16(random, i));
  }
  store_unit(rounded, to + run.at, run.count);
}

// ---- 8-bit codes: the threads of a block of moments agree on its scale ----

inline constexpr int kBlockThreads = kMomentBlock / kUnit;
static_assert(kBlockThreads == 16, "half a warp");

template <class Code>
inline constexpr std::uint32_t kSignBit = std::is_same_v<Code, FirstMomentCode> ? 0x80u : 0u;

// A byte of eight, the first in memory being the lowest.
__device__ inline std::uint32_t byte_of(const uint2& word, int i) {
  return __byte_perm(i < 4 ? word.x : word.y, 0, 0x4440 | (i % 4));
}

template <class Code>
__device__ void load_codes(const std::uint8_t* codes, const std::uint8_t* exponents, const Run& run,
                           float (&values)[kUnit]) {
  __builtin_assume(__isGlobal(codes));
  __builtin_assume(__isGlobal(exponents));
  const std::uint32_t exponent = run.count > 0 ? exponents[run.at / kMomentBlock] : 0;
  const float scale =
      exponent == kNoExponent ? __uint_as_float(0x7fffffffu) : __uint_as_float(block_scale_bits(exponent));
  uint2 word{};
  if (run.count >= kUnit) {
    word = *reinterpret_cast<const uint2*>(codes + run.at);
  } else {
#pragma unroll 1
    for (int i = 0; i < run.count; ++i) {
      (i < 4 ? word.x : word.y) |= std::uint32_t{codes[run.at + i]} << (8 * (i % 4));
    }
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const std::uint32_t code = byte_of(word, i);
    const std::uint32_t magnitude = Code::value_bits(code & ~kSignBit<Code>);
    const std::uint32_t sign = (code & kSignBit<Code>) << 24;
    values[i] = __fmul_rn(__uint_as_float(magnitude | sign), scale);
  }
}

// Every thread of the block of moments calls it, also one whose run lies behind the end. Values behind the end are zeros, which
// moments without a gradient stay.
template <class Code>
__device__ void store_codes(const float (&values)[kUnit], std::uint8_t* codes, std::uint8_t* exponents,
                            const Run& run, const PhiloxBlock& random) {
  __builtin_assume(__isGlobal(codes));
  __builtin_assume(__isGlobal(exponents));
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    largest = max(largest, __float_as_uint(values[i]) & 0x7fffffffu);
  }
  const unsigned half_warp = 0xffffu << (threadIdx.x & 16u);
#pragma unroll
  for (int distance = kBlockThreads / 2; distance > 0; distance /= 2) {
    largest = max(largest, __shfl_xor_sync(half_warp, largest, distance));
  }
  const std::uint32_t exponent = block_exponent(largest);
  if (run.count > 0 && run.at % kMomentBlock == 0) {
    exponents[run.at / kMomentBlock] = static_cast<std::uint8_t>(exponent);
  }
  const float inverse = __uint_as_float(inverse_scale_bits(exponent));
  std::uint32_t rounded[kUnit];
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const float quotient = __fmul_rn(fabsf(values[i]), inverse);
    const std::uint32_t number = random16(random, i);
    // The number as fp32, without the slow conversion: behind the point of 2^23.
    const float wide = __uint_as_float(0x4b000000u | number) - 8388608.0f;
    rounded[i] = Code::round(quotient, __float_as_uint(quotient), number, wide);
    if constexpr (kSignBit<Code> != 0) {
      rounded[i] |= values[i] < 0 ? kSignBit<Code> : 0;
    }
  }
  uint2 word{rounded[0] | rounded[1] << 8 | rounded[2] << 16 | rounded[3] << 24,
             rounded[4] | rounded[5] << 8 | rounded[6] << 16 | rounded[7] << 24};
  if (exponent == kNoExponent) {
    word = uint2{};
  }
  if (run.count >= kUnit) {
    *reinterpret_cast<uint2*>(codes + run.at) = word;
  } else {
#pragma unroll 1
    for (int i = 0; i < run.count; ++i) {
      codes[run.at + i] = static_cast<std::uint8_t>((i < 4 ? word.x : word.y) >> (8 * (i % 4)));
    }
  }
}

// ---- by format ----

template <AdamWMoments kMoments>
__device__ void load_moments(const AdamWTensor& tensor, const Run& run, float (&exp_avg)[kUnit],
                             float (&exp_avg_sq)[kUnit]) {
  if constexpr (kMoments == AdamWMoments::kEightBit) {
    load_codes<FirstMomentCode>(static_cast<const std::uint8_t*>(tensor.exp_avg), tensor.exp_avg_scale, run,
                                exp_avg);
    load_codes<SecondMomentCode>(static_cast<const std::uint8_t*>(tensor.exp_avg_sq), tensor.exp_avg_sq_scale,
                                 run, exp_avg_sq);
  } else {
    using Stored = std::conditional_t<kMoments == AdamWMoments::kFp32, float, __nv_bfloat16>;
    load_unit(static_cast<const Stored*>(tensor.exp_avg) + run.at, run.count, exp_avg);
    load_unit(static_cast<const Stored*>(tensor.exp_avg_sq) + run.at, run.count, exp_avg_sq);
  }
}

template <AdamWMoments kMoments>
__device__ void store_moments(const float (&exp_avg)[kUnit], const float (&exp_avg_sq)[kUnit],
                              const AdamWTensor& tensor, const Run& run, std::uint64_t seed) {
  if constexpr (kMoments == AdamWMoments::kFp32) {
    store_unit(exp_avg, static_cast<float*>(tensor.exp_avg) + run.at, run.count);
    store_unit(exp_avg_sq, static_cast<float*>(tensor.exp_avg_sq) + run.at, run.count);
    return;
  }
  const PhiloxBlock random = random_of(run, seed, tensor.moment_stream);
  if constexpr (kMoments == AdamWMoments::kBf16) {
    store_stochastically(exp_avg, static_cast<__nv_bfloat16*>(tensor.exp_avg), run, random);
    store_stochastically(exp_avg_sq, static_cast<__nv_bfloat16*>(tensor.exp_avg_sq), run, random);
  } else {
    store_codes<FirstMomentCode>(exp_avg, static_cast<std::uint8_t*>(tensor.exp_avg), tensor.exp_avg_scale,
                                 run, random);
    store_codes<SecondMomentCode>(exp_avg_sq, static_cast<std::uint8_t*>(tensor.exp_avg_sq),
                                  tensor.exp_avg_sq_scale, run, random);
  }
}

}  // namespace phalanx::kernels
