#include "data/packing.h"

#include "core/error.h"
#include "data/epoch_plan.h"
#include "fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace phalanx {
namespace {

constexpr std::int64_t kCapacity = 4096;

std::vector<std::int64_t> all_ids(std::size_t count) {
  std::vector<std::int64_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

std::int64_t tokens_of(const Row& row, const std::vector<std::int64_t>& lengths) {
  return std::accumulate(row.begin(), row.end(), std::int64_t{0},
                         [&](std::int64_t sum, std::int64_t id) { return sum + lengths[id]; });
}

// Each sample in exactly one row and no row too long.
void expect_valid(const std::vector<Row>& rows, const std::vector<std::int64_t>& lengths,
                  std::int64_t capacity) {
  std::vector<std::int64_t> seen;
  for (const Row& row : rows) {
    EXPECT_FALSE(row.empty());
    EXPECT_LE(tokens_of(row, lengths), capacity);
    seen.insert(seen.end(), row.begin(), row.end());
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, all_ids(lengths.size()));
}

TEST(Packing, ClosesARowWithThePairThatFillsIt) {
  // After 6 there is room for 4: 3 + 1 fills it, the longer 3 alone would not.
  const std::vector<std::int64_t> lengths = {1, 3, 5, 5, 6};
  EXPECT_EQ(pack_rows(all_ids(5), lengths, 10), (std::vector<Row>{{4, 1, 0}, {3, 2}}));
}

TEST(Packing, FullRowsAndSingleTokens) {
  EXPECT_EQ(pack_rows(all_ids(3), {8, 8, 8}, 8), (std::vector<Row>{{2}, {1}, {0}}));
  EXPECT_EQ(pack_rows(all_ids(3), {1, 1, 1}, 8), (std::vector<Row>{{2, 1, 0}}));
  EXPECT_TRUE(pack_rows({}, {}, 8).empty());
}

TEST(Packing, RefusesWhatNoRowHolds) {
  EXPECT_THROW(pack_rows(all_ids(1), {9}, 8), Error);
  EXPECT_THROW(pack_rows(all_ids(1), {0}, 8), Error);
}

// No packing has fewer rows than ceil(tokens / capacity); what is missing to full rows lies in one row alone.
void expect_optimal(const std::vector<double>& quantiles, std::int64_t count) {
  const std::vector<std::int64_t> lengths = testing::lengths_like(quantiles, count);
  const std::vector<Row> rows = pack_rows(all_ids(lengths.size()), lengths, kCapacity);
  expect_valid(rows, lengths, kCapacity);
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  EXPECT_EQ(static_cast<std::int64_t>(rows.size()), (tokens + kCapacity - 1) / kCapacity);
  std::vector<std::int64_t> used;
  for (const Row& row : rows) {
    used.push_back(tokens_of(row, lengths));
  }
  const std::int64_t emptiest = *std::min_element(used.begin(), used.end());
  const double fill =
      static_cast<double>(tokens - emptiest) / static_cast<double>((rows.size() - 1) * kCapacity);
  EXPECT_GE(fill, 0.995);
}

TEST(Packing, FillsRowsOfGsm8k) { expect_optimal(testing::kGsm8kQuantiles, 7473); }
TEST(Packing, FillsRowsOfAlpaca) { expect_optimal(testing::kAlpacaQuantiles, 999); }

TEST(Packing, ValidForManyShapes) {
  for (const std::int64_t capacity : {1, 2, 7, 64, 1000}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      std::vector<std::int64_t> lengths;
      for (std::uint64_t i = 0; i < 10 * seed + 1; ++i) {
        lengths.push_back(1 + (i * 7919 + seed * 104729) % capacity);
      }
      expect_valid(pack_rows(all_ids(lengths.size()), lengths, capacity), lengths, capacity);
    }
  }
}

TEST(EpochPlan, EveryEpochHasOtherRowsOfTheSameNumber) {
  const std::vector<std::int64_t> lengths = testing::lengths_like(testing::kAlpacaQuantiles, 300);
  for (const bool packing : {true, false}) {
    const EpochPlanOptions options{.sequence_length = 1024, .packing = packing, .seed = 5};
    const std::vector<Row> first = plan_epoch(all_ids(300), lengths, options, 0);
    const std::vector<Row> second = plan_epoch(all_ids(300), lengths, options, 1);
    expect_valid(first, lengths, 1024);
    expect_valid(second, lengths, 1024);
    EXPECT_EQ(first.size(), second.size());
    EXPECT_NE(first, second);
    EXPECT_EQ(first, plan_epoch(all_ids(300), lengths, options, 0));
  }
}

TEST(EpochPlan, SeedChangesTheOrderAndNoShuffleKeepsIt) {
  const std::vector<std::int64_t> lengths(50, 3);
  EpochPlanOptions options{.sequence_length = 3, .packing = false, .seed = 1};
  const std::vector<Row> one = plan_epoch(all_ids(50), lengths, options, 0);
  options.seed = 2;
  EXPECT_NE(one, plan_epoch(all_ids(50), lengths, options, 0));
  options.shuffle = false;
  const std::vector<Row> kept = plan_epoch(all_ids(50), lengths, options, 3);
  for (std::int64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(kept[i], Row{i});
  }
}

TEST(EpochPlan, SplitIsDisjointAndOfTheAskedSize) {
  const Split split = split_samples(1000, 0.05, 3);
  EXPECT_EQ(split.validation.size(), 50u);
  std::set<std::int64_t> all(split.train.begin(), split.train.end());
  all.insert(split.validation.begin(), split.validation.end());
  EXPECT_EQ(all.size(), 1000u);
  EXPECT_EQ(split.train.size(), 950u);
  EXPECT_NE(split.validation, split_samples(1000, 0.05, 4).validation);
  EXPECT_EQ(split_samples(10, 0.001, 0).validation.size(), 1u);
  EXPECT_TRUE(split_samples(10, 0, 0).validation.empty());
}

}  // namespace
}  // namespace phalanx
