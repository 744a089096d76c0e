// Moments of AdamW as they are stored in bf16 or 8 bits, read into fp32 and written back, on the CPU.
#pragma once
#include "core/moment_code.h"
#include "core/philox.h"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace phalanx::cpu {

// The random numbers of a run of elements: 16 bits each, 8 to a block.
struct RandomRun {
  std::uint64_t seed, stream;
  std::int64_t begin;  // position of the first element in its parameter, a multiple of 8

  // Calls body(i, random16) for each of `count` elements.
  template <class Body>
  void for_each(std::int64_t count, const Body& body) const {
    for (std::int64_t i = 0; i < count; i += 8) {
      const PhiloxBlock random = philox_block(seed, stream, static_cast<std::uint64_t>((begin + i) / 8));
      for (std::int64_t j = i; j < std::min(count, i + 8); ++j) {
        const std::uint32_t pair = random[(j - i) / 2];
        body(j, (j - i) % 2 == 0 ? pair & 0xffffu : pair >> 16);
      }
    }
  }
};

// Rounds up with the probability of the cut-off fraction, so that the expectation is the value itself.
inline at::BFloat16 round_stochastically(float value, std::uint32_t random16) {
  if (!std::isfinite(value)) {
    return static_cast<at::BFloat16>(value);
  }
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) + random16;
  return at::BFloat16(static_cast<std::uint16_t>(bits >> 16), at::BFloat16::from_bits());
}

inline void round_stochastically(const float* from, at::BFloat16* to, std::int64_t count,
                                 const RandomRun& random) {
  random.for_each(count, [&](std::int64_t i, std::uint32_t random16) {
    to[i] = round_stochastically(from[i], random16);
  });
}

// Runs of 8-bit moments begin with a block. `Code` is FirstMomentCode, whose eighth bit is a sign, or SecondMomentCode.
template <class Code>
inline constexpr std::uint32_t kSignBit = std::is_same_v<Code, FirstMomentCode> ? 0x80u : 0u;

template <class Code>
void read_codes(const std::uint8_t* codes, const std::uint8_t* exponents, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t exponent = exponents[i / kMomentBlock];
    const float scale = exponent == kNoExponent ? std::numeric_limits<float>::quiet_NaN()
                                                : std::bit_cast<float>(block_scale_bits(exponent));
    const float magnitude = std::bit_cast<float>(Code::value_bits(codes[i] & ~kSignBit<Code>)) * scale;
    to[i] = (codes[i] & kSignBit<Code>) != 0 ? -magnitude : magnitude;
  }
}

template <class Code>
void write_codes(const float* from, std::uint8_t* codes, std::uint8_t* exponents, std::int64_t count,
                 const RandomRun& random) {
  constexpr std::uint32_t kMagnitude = 0x7fffffffu;
  for (std::int64_t begin = 0; begin < count; begin += kMomentBlock) {
    std::uint32_t largest = 0;
    for (std::int64_t i = begin; i < std::min(count, begin + kMomentBlock); ++i) {
      largest = std::max(largest, std::bit_cast<std::uint32_t>(from[i]) & kMagnitude);
    }
    exponents[begin / kMomentBlock] = static_cast<std::uint8_t>(block_exponent(largest));
  }
  random.for_each(count, [&](std::int64_t i, std::uint32_t random16) {
    const std::uint32_t exponent = exponents[i / kMomentBlock];
    if (exponent == kNoExponent) {
      codes[i] = 0;
      return;
    }
    const float quotient = std::fabs(from[i]) * std::bit_cast<float>(inverse_scale_bits(exponent));
    const std::uint32_t code =
        Code::round(quotient, std::bit_cast<std::uint32_t>(quotient), random16, static_cast<float>(random16));
    codes[i] = static_cast<std::uint8_t>(code | (from[i] < 0 ? kSignBit<Code> : 0));
  });
}

}  // namespace phalanx::cpu
