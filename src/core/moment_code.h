// 8-bit floats for the moments of an optimizer, in blocks that share a power of two.
//
// A block of kMomentBlock neighbouring values is divided by the least power of two that is not below any of them, which is exact,
// and each quotient becomes a float of 3 mantissa bits: second moments, which are not negative, with 5 exponent bits, first moments
// with 4 and a sign. So a value within 2^-32 (2^-16) of the largest of its block is off by at most an eighth of itself. Rounding is
// stochastic, and therefore right on average: a slow moving average moves by less than the spacing of the codes, and rounded to
// nearest it would stand still.
//
// Values are handled as the bits of an fp32 number. The functions are the same on the CPU and on a GPU, to the bit.
#pragma once
#include <cstdint>

namespace phalanx {

inline constexpr std::int64_t kMomentBlock = 128;

constexpr std::int64_t moment_blocks(std::int64_t elements) {
  return (elements + kMomentBlock - 1) / kMomentBlock;
}

// The shared power of two is 2^(exponent - 127). 0: all values are zero; kNoExponent: one is beyond 2^126, infinite or NaN, and
// the whole block reads as NaN.
inline constexpr std::uint32_t kNoExponent = 255;

constexpr std::uint32_t block_exponent(std::uint32_t largest_magnitude_bits) {
  const std::uint32_t exponent = (largest_magnitude_bits + 0x7fffffu) >> 23;
  return exponent > 253 ? kNoExponent : exponent;
}

// The bits of 2^(exponent - 127), and of what takes a block to quotients of at most 1.
constexpr std::uint32_t block_scale_bits(std::uint32_t exponent) { return exponent << 23; }
constexpr std::uint32_t inverse_scale_bits(std::uint32_t exponent) { return (254 - exponent) << 23; }

// Codes of kBits bits without a sign, 0 for zero, the largest for 1.
template <int kBits>
struct MomentCode {
  static constexpr int kMantissa = 3;
  static constexpr int kDropped = 23 - kMantissa;  // mantissa bits that fp32 has beyond
  static constexpr std::uint32_t kOneBits = 0x3f800000u;
  static constexpr std::uint32_t kBase =
      (kOneBits >> kDropped) - ((1u << kBits) - 1);                     // what code 0 is counted from
  static constexpr std::uint32_t kLeastBits = (kBase + 1) << kDropped;  // value of code 1

  static constexpr float least() {
    float value = 1.0f + static_cast<float>((kBase + 1) % (1u << kMantissa)) / (1u << kMantissa);
    for (std::uint32_t exponent = (kBase + 1) >> kMantissa; exponent < 127; ++exponent) {
      value /= 2;
    }
    return value;
  }
  static constexpr float kRandomPerLeast = 65536.0f / least();

  // `quotient` in [0, 1] and its bits; up with the probability of what is cut off, which the 16 bits of `random16` decide.
  // `random` is the same number in fp32.
  static constexpr std::uint32_t round(float quotient, std::uint32_t quotient_bits, std::uint32_t random16,
                                       float random) {
    const std::uint32_t code = ((quotient_bits + (random16 << (kDropped - 16))) >> kDropped) - kBase;
    const std::uint32_t below = quotient * kRandomPerLeast > random ? 1 : 0;
    return quotient_bits < kLeastBits ? below : code;
  }

  static constexpr std::uint32_t value_bits(std::uint32_t code) {
    return code == 0 ? 0 : (code + kBase) << kDropped;
  }
};

using FirstMomentCode = MomentCode<7>;  // the eighth bit is the sign
using SecondMomentCode = MomentCode<8>;

}  // namespace phalanx
