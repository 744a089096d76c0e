#include "core/convert.h"

#include "core/error.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace phalanx {
namespace {

std::uint16_t narrow(float x, Dtype to) {
  std::uint16_t out = 0;
  convert_elements(&x, Dtype::kF32, &out, to, 1);
  return out;
}

float widen(std::uint16_t x, Dtype from) {
  float out = 0;
  convert_elements(&x, from, &out, Dtype::kF32, 1);
  return out;
}

// The value of 16 bits by the definition of the format.
double value_of(std::uint16_t bits, int mantissa_bits, int bias) {
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits & 0x7FFF) >> mantissa_bits;
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  const double size =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return bits & 0x8000 ? -size : size;
}

TEST(Convert, EveryValueOf16BitsSurvivesWideningAndBack) {
  for (const auto& [dtype, mantissa_bits, bias] :
       {std::tuple{Dtype::kBF16, 7, 127}, std::tuple{Dtype::kF16, 10, 15}}) {
    const int infinity = 0x7FFF >> mantissa_bits << mantissa_bits;
    for (int i = 0; i <= 0xFFFF; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      const float wide = widen(bits, dtype);
      ASSERT_EQ(narrow(wide, dtype), bits) << dtype_name(dtype) << ' ' << i;
      if ((bits & 0x7FFF) < infinity) {
        ASSERT_EQ(wide, value_of(bits, mantissa_bits, bias)) << dtype_name(dtype) << ' ' << i;
      } else {
        ASSERT_EQ(std::isnan(wide), (bits & 0x7FFF) != infinity);
      }
    }
  }
}

TEST(Convert, RoundsToTheNearestAndTiesToEven) {
  for (const auto& [dtype, mantissa_bits, bias] :
       {std::tuple{Dtype::kBF16, 7, 127}, std::tuple{Dtype::kF16, 10, 15}}) {
    const int infinity = 0x7FFF >> mantissa_bits << mantissa_bits;
    for (int bits = 0; bits + 1 < infinity; ++bits) {
      const double low = value_of(static_cast<std::uint16_t>(bits), mantissa_bits, bias);
      const double high = value_of(static_cast<std::uint16_t>(bits + 1), mantissa_bits, bias);
      const auto middle = static_cast<float>((low + high) / 2);
      ASSERT_EQ(middle, (low + high) / 2);
      ASSERT_EQ(narrow(middle, dtype), bits % 2 == 0 ? bits : bits + 1) << dtype_name(dtype) << ' ' << bits;
      ASSERT_EQ(narrow(std::nextafter(middle, 0.0f), dtype), bits) << dtype_name(dtype) << ' ' << bits;
      ASSERT_EQ(narrow(std::nextafter(middle, INFINITY), dtype), bits + 1)
          << dtype_name(dtype) << ' ' << bits;
    }
  }
}

TEST(Convert, LeavesTheRangeToInfinityAndKeepsNan) {
  EXPECT_EQ(narrow(65519.996f, Dtype::kF16), 0x7BFF);
  EXPECT_EQ(narrow(65520.0f, Dtype::kF16), 0x7C00);
  EXPECT_EQ(narrow(-1e30f, Dtype::kF16), 0xFC00);
  EXPECT_EQ(narrow(std::numeric_limits<float>::max(), Dtype::kBF16), 0x7F80);
  EXPECT_EQ(narrow(-INFINITY, Dtype::kBF16), 0xFF80);
  // A payload in the low bits alone must not turn into infinity.
  const float nan = std::bit_cast<float>(0x7F800001u);
  EXPECT_EQ(narrow(nan, Dtype::kBF16), 0x7FC0);
  EXPECT_EQ(narrow(nan, Dtype::kF16), 0x7E00);
}

TEST(Convert, DoublesAndUnalignedMemory) {
  const float source[] = {1.5f, -2.25f};
  std::vector<unsigned char> staging(1 + 2 * sizeof(double));
  convert_elements(source, Dtype::kF32, staging.data() + 1, Dtype::kF64, 2);
  float back[2] = {};
  convert_elements(staging.data() + 1, Dtype::kF64, back, Dtype::kF32, 2);
  EXPECT_EQ(back[0], 1.5f);
  EXPECT_EQ(back[1], -2.25f);
}

TEST(Convert, RefusesWhatItCannotDo) {
  EXPECT_TRUE(can_convert(Dtype::kF8E4M3, Dtype::kF8E4M3));
  EXPECT_FALSE(can_convert(Dtype::kF8E4M3, Dtype::kBF16));
  EXPECT_FALSE(can_convert(Dtype::kF64, Dtype::kBF16));
  EXPECT_FALSE(can_convert(Dtype::kI32, Dtype::kF32));
  std::uint64_t x = 0;
  EXPECT_THROW(convert_elements(&x, Dtype::kI32, &x, Dtype::kF32, 1), Error);
}

}  // namespace
}  // namespace phalanx
