// exp and the logistic function inside vectorised loops. The C library's expf is a call the compiler cannot
// vectorise; the float version here is straight-line arithmetic with an error of about 1 ulp.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace phalanx::cpu {

// exp(x) = 2^n * exp(r) with n = round(x / ln 2) and |r| <= ln(2) / 2, exp(r) by its Taylor polynomial of
// degree 7 (truncation 5e-9 relative). Denormal results, 0 and infinity come out as they should; NaN stays
// NaN.
[[gnu::always_inline]] inline float exp(float x) {
  // Beyond these the result is 0 or infinity. Written so that NaN passes.
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum.
  constexpr float kRound = 12582912.0f;
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  // ln 2 in two parts, the first short enough for n * part to be exact.
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440054690583e-4f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two factors, because n runs from -150 to 128, past the exponents of a float.
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound);
  const std::int32_t half = exponent >> 1;
  const float low = std::bit_cast<float>((half + 127) << 23);
  const float high = std::bit_cast<float>((exponent - half + 127) << 23);
  return p * low * high;
}

inline double exp(double x) { return std::exp(x); }

// 1 / (1 + exp(-x))
template <class C>
[[gnu::always_inline]] inline C sigmoid(C x) {
  return C(1) / (C(1) + exp(-x));
}

}  // namespace phalanx::cpu
