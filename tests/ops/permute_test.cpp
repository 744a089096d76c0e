#include "ops/permute.h"

#include "core/error.h"
#include "ops/check.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>

#include <gtest/gtest.h>

namespace phalanx {
namespace {

using testing::random_tensor;
using testing::relative_error;

at::Tensor random_indices(std::int64_t tokens, std::int64_t top_k, std::int64_t experts) {
  return at::randint(experts, {tokens, top_k}, at::TensorOptions().dtype(at::kInt));
}

void expect_groups(const at::Tensor& indices, std::int64_t experts) {
  const ExpertGroups groups = group_by_expert(indices, experts);
  const ExpertGroups expected = group_by_expert_reference(indices, experts);
  EXPECT_TRUE(groups.counts.equal(expected.counts));
  EXPECT_TRUE(groups.ends.equal(expected.ends));
  EXPECT_TRUE(groups.choices.equal(expected.choices));
  EXPECT_TRUE(groups.rows.equal(expected.rows));
}

TEST(Permute, GroupsRowsByExpertInOrderOfTheirChoice) {
  for (const auto tokens : {1, 2, 75}) {
    for (const auto top_k : {1, 3, 8}) {
      expect_groups(random_indices(tokens, top_k, 5), 5);
    }
  }
}

TEST(Permute, OneExpertTakesEveryTokenAndOthersNone) {
  const auto indices = at::full({9, 1}, 2, at::TensorOptions().dtype(at::kInt));
  expect_groups(indices, 4);
  EXPECT_TRUE(group_by_expert(indices, 4).counts.equal(at::tensor({0, 0, 9, 0}, at::kLong)));
}

TEST(Permute, RefusesAnExpertThatDoesNotExist) {
  for (const auto expert : {-1, 4}) {
    const auto indices = at::full({3, 2}, expert, at::TensorOptions().dtype(at::kInt));
    EXPECT_THROW(group_by_expert(indices, 4), Error) << expert;
  }
  EXPECT_THROW(group_by_expert(at::full({3, 2}, 1, at::TensorOptions().dtype(at::kLong)), 4), Error);
}

TEST(Permute, GathersAndCombines) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const double tolerance = dtype == at::kBFloat16 ? 1e-2 : 1e-6;
    for (const auto width : {1, 7, 96}) {
      for (const auto top_k : {1, 2, 8}) {
        const auto groups = group_by_expert(random_indices(33, top_k, 6), 6);
        const auto x = random_tensor({33, width}, dtype), weights = random_tensor({33, top_k}, dtype),
                   values = random_tensor({33 * top_k, width}, dtype);
        for (const auto& weight : {std::optional<at::Tensor>(), std::optional(weights)}) {
          EXPECT_LE(relative_error(gather_rows(x, groups.rows, weight),
                                   gather_rows_reference(x, groups.rows, weight)),
                    tolerance);
          for (const auto& residual : {std::optional<at::Tensor>(), std::optional(x)}) {
            EXPECT_LE(relative_error(combine_rows(values, groups.rows, weight, residual),
                                     combine_rows_reference(values, groups.rows, weight, residual)),
                      tolerance);
          }
        }
      }
    }
  }
}

TEST(Permute, CombineInBfloat16RoundsOnce) {
  // 256 + 1 + 1 is 258 in bf16 when it is rounded once, 256 when it is rounded after each addition.
  const auto values = at::tensor({256.0, 1.0, 1.0}, at::kDouble).to(at::kBFloat16).view({3, 1});
  const auto rows = at::tensor({0, 1, 2}, at::kInt).view({1, 3});
  EXPECT_EQ(combine_rows(values, rows, std::nullopt, std::nullopt).item<double>(), 258.0);
}

}  // namespace
}  // namespace phalanx
