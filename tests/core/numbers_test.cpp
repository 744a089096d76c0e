#include "core/dtype.h"
#include "core/hash.h"
#include "core/philox.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace phalanx {
namespace {

TEST(Dtype, NamesAndWidthsAgreeWithTheFormat) {
  EXPECT_STREQ(dtype_name(Dtype::kBF16), "BF16");
  EXPECT_STREQ(dtype_name(Dtype::kF8E4M3Fnuz), "F8_E4M3FNUZ");
  EXPECT_EQ(dtype_bits(Dtype::kF4), 4);
  EXPECT_EQ(dtype_bits(Dtype::kF6E2M3), 6);
  EXPECT_EQ(dtype_bits(Dtype::kBool), 8);
  EXPECT_EQ(dtype_bits(Dtype::kC64), 64);
  EXPECT_FALSE(dtype_from_name("bf16"));
  for (int i = 0; i <= static_cast<int>(Dtype::kU64); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
}

// Random123's known answers for philox4x32-10.
TEST(Philox, GivesThePublishedKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformAndNormalHaveTheirMoments) {
  constexpr int kBlocks = 50'000;
  double sum = 0, sum2 = 0, normal_sum = 0, normal_sum2 = 0, normal_sum4 = 0;
  for (int i = 0; i < kBlocks; ++i) {
    for (const float u : philox_uniform4(7, 3, i)) {
      ASSERT_GE(u, 0.0f);
      ASSERT_LT(u, 1.0f);
      sum += u;
      sum2 += u * u;
    }
    for (const float z : philox_normal4(7, 3, i)) {
      normal_sum += z;
      normal_sum2 += z * z;
      normal_sum4 += double{z} * z * z * z;
    }
  }
  constexpr double kCount = 4.0 * kBlocks;
  EXPECT_NEAR(sum / kCount, 0.5, 0.003);
  EXPECT_NEAR(sum2 / kCount, 1.0 / 3, 0.003);
  EXPECT_NEAR(normal_sum / kCount, 0, 0.01);
  EXPECT_NEAR(normal_sum2 / kCount, 1, 0.02);
  EXPECT_NEAR(normal_sum4 / kCount, 3, 0.1);
  EXPECT_LT(uniform_from_bits(0xffffffff), 1.0f);
}

TEST(Philox, SeedStreamAndIndexAllMatter) {
  const PhiloxBlock block = philox_block(1, 2, 3);
  EXPECT_EQ(block, philox_block(1, 2, 3));
  EXPECT_NE(block, philox_block(std::uint64_t{1} << 32 | 1, 2, 3));
  EXPECT_NE(block, philox_block(1, std::uint64_t{1} << 32 | 2, 3));
  EXPECT_NE(block, philox_block(1, 2, std::uint64_t{1} << 32 | 3));
}

// Digests of the reference implementation.
TEST(Xxh64, GivesTheKnownDigests) {
  EXPECT_EQ(xxh64("", 0), 0xef46db3751d8e999u);
  EXPECT_EQ(xxh64("abc", 3), 0x44bc2cf5ad770999u);
  const std::string text = "Nobody inspects the spammish repetition";
  EXPECT_EQ(xxh64(text.data(), text.size()), 0xfbcea83c8a378bf1u);
  std::vector<unsigned char> bytes(101);
  std::iota(bytes.begin(), bytes.end(), 0);
  EXPECT_EQ(xxh64(bytes.data(), 32), 0xcbf59c5116ff32b4u);
  EXPECT_EQ(xxh64(bytes.data(), 101, 2654435761u), 0xa1c6d4174c37136du);
  EXPECT_EQ(hex_digest(0x0123456789abcdefu), "0123456789abcdef");
}

TEST(Xxh64, DoesNotDependOnThePieces) {
  std::vector<unsigned char> bytes(1000);
  std::iota(bytes.begin(), bytes.end(), 0);
  const std::uint64_t whole = xxh64(bytes.data(), bytes.size());
  for (const std::size_t piece : {1, 7, 31, 32, 33, 500}) {
    Xxh64 hash;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      hash.update(bytes.data() + at, std::min(piece, bytes.size() - at));
    }
    EXPECT_EQ(hash.digest(), whole) << piece;
  }
}

}  // namespace
}  // namespace phalanx
