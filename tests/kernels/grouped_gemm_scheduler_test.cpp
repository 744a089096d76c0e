#include "kernels/grouped_gemm/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace phalanx::kernels {
namespace {

std::vector<TileCoord> path(int m_tiles, int n_tiles) {
  std::vector<TileCoord> tiles;
  for (int i = 0; i < m_tiles * n_tiles; ++i) {
    tiles.push_back(tile_in_expert(i, m_tiles, n_tiles));
  }
  return tiles;
}

TEST(GroupedGemmScheduler, VisitsEveryTileOnce) {
  for (int m_tiles : {1, 2, 3, 7, 8, 9, 16, 17, 40}) {
    for (int n_tiles : {1, 2, 3, 6, 8, 11}) {
      std::set<std::pair<int, int>> seen;
      for (const TileCoord& tile : path(m_tiles, n_tiles)) {
        EXPECT_TRUE(tile.m >= 0 && tile.m < m_tiles && tile.n >= 0 && tile.n < n_tiles);
        seen.emplace(tile.m, tile.n);
      }
      EXPECT_EQ(static_cast<int>(seen.size()), m_tiles * n_tiles) << m_tiles << " x " << n_tiles;
    }
  }
}

TEST(GroupedGemmScheduler, NeighboursOfABandShareAnOperand) {
  for (int m_tiles : {1, 3, 5, 8, 11}) {
    for (int n_tiles : {1, 3, 8}) {
      const std::vector<TileCoord> tiles = path(m_tiles, n_tiles);
      for (std::size_t i = 1; i < tiles.size(); ++i) {
        const bool same_band = tiles[i].m / kBandTiles == tiles[i - 1].m / kBandTiles;
        EXPECT_TRUE(!same_band || tiles[i].m == tiles[i - 1].m || tiles[i].n == tiles[i - 1].n)
            << m_tiles << " x " << n_tiles << " at " << i;
      }
    }
  }
}

TEST(GroupedGemmScheduler, FinishesABandBeforeTheNext) {
  const std::vector<TileCoord> tiles = path(20, 6);
  EXPECT_TRUE(std::is_sorted(tiles.begin(), tiles.end(), [](const TileCoord& a, const TileCoord& b) {
    return a.m / kBandTiles < b.m / kBandTiles;
  }));
}

// What the 132 multiprocessors work on at one time must fit L2: few distinct rows and few distinct columns of a big expert.
TEST(GroupedGemmScheduler, KeepsTheWorkingSetOfALargeExpertSmall) {
  const std::vector<TileCoord> tiles = path(64, 112);
  for (std::size_t first = 0; first + 132 <= tiles.size(); first += 97) {
    std::set<int> rows;
    std::set<int> columns;
    for (std::size_t i = first; i < first + 132; ++i) {
      rows.insert(tiles[i].m);
      columns.insert(tiles[i].n);
    }
    EXPECT_LE(rows.size(), 2u * kBandTiles);
    EXPECT_LE(columns.size(), 20u);
  }
}

TEST(GroupedGemmScheduler, GivesBothBlocksOfAClusterTheSameExpertOfAWeightGradient) {
  for (int tiles_per_expert : {1, 2, 3, 7, 96}) {
    const int experts = 5;
    std::set<std::pair<int, int>> seen;
    const int count = weight_tiles(experts, tiles_per_expert);
    ASSERT_EQ(count % kClusterSize, 0);
    for (int i = 0; i < count; ++i) {
      const WeightTile tile = weight_tile(i, tiles_per_expert);
      EXPECT_EQ(tile.expert, weight_tile(i ^ 1, tiles_per_expert).expert);
      if (tile.index < tiles_per_expert) {
        EXPECT_TRUE(seen.emplace(tile.expert, tile.index).second);
      }
    }
    EXPECT_EQ(static_cast<int>(seen.size()), experts * tiles_per_expert);
  }
}

TEST(GroupedGemmScheduler, ReadsAnExpertsRowsFromTheEnds) {
  const int ends[] = {3, 3, 10};
  EXPECT_EQ(first_row(ends, 0), 0);
  EXPECT_EQ(first_row(ends, 1), 3);
  EXPECT_EQ(first_row(ends, 2), 3);
}

TEST(GroupedGemmScheduler, ChoosesTheTileWidthThatWastesLess) {
  EXPECT_EQ(block_n_for(2048), 256);
  EXPECT_EQ(block_n_for(1536), 256);
  EXPECT_EQ(block_n_for(768), 256);
  EXPECT_EQ(block_n_for(2880), 192);  // 15 x 192
  EXPECT_EQ(block_n_for(2688), 192);  // 14 x 192
  EXPECT_EQ(block_n_for(192), 192);
}

}  // namespace
}  // namespace phalanx::kernels
