#include "kernels/grouped_gemm/layout.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace phalanx::kernels {
namespace {

TEST(GroupedGemmLayout, SwizzleIsAPermutationThatKeepsGranulesWhole) {
  std::set<int> offsets;
  for (int row = 0; row < kSliceRows; ++row) {
    for (int byte = 0; byte < 128; ++byte) {
      const int offset = swizzled_offset(row, byte);
      EXPECT_EQ(offset / 128, row);
      EXPECT_EQ(offset % 16, byte % 16);
      offsets.insert(offset);
    }
  }
  EXPECT_EQ(offsets.size(), static_cast<std::size_t>(kSliceRows * 128));
}

TEST(GroupedGemmLayout, AColumnOfGranulesTouchesEveryBankOnce) {
  for (int granule = 0; granule < 8; ++granule) {
    std::set<int> banks;
    for (int row = 0; row < 8; ++row) {
      banks.insert(swizzled_offset(row, granule * 16) % 128 / 16);
    }
    EXPECT_EQ(banks.size(), 8u);
  }
}

TEST(GroupedGemmLayout, AccumulatorsOfAWarpCoverSixteenRowsOnce) {
  std::set<std::pair<int, int>> cells;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kChunkValues; ++i) {
      cells.emplace(accumulator_row(lane, i), accumulator_column(lane, i));
    }
  }
  EXPECT_EQ(cells.size(), static_cast<std::size_t>(kSliceRows * 64));
  EXPECT_EQ(cells.begin()->first, 0);
  EXPECT_EQ(cells.rbegin()->first, kSliceRows - 1);
  EXPECT_EQ(accumulator_column(31, kChunkValues - 1), 63);
}

}  // namespace
}  // namespace phalanx::kernels
