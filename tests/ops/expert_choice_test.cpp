#include "ops/expert_choice.h"

#include "core/error.h"
#include "ops/check.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace phalanx {
namespace {

using testing::random_tensor;

RouterSpec spec_of(std::int64_t experts, std::int64_t top_k, std::int64_t groups, std::int64_t top_groups) {
  RouterSpec spec{experts, top_k, ScoreFunction::kSigmoid};
  spec.correction_bias = true;
  spec.num_groups = groups;
  spec.top_groups = top_groups;
  return spec;
}

// Numbers of the `count` largest values, equals in order of their number.
std::vector<int> best(const std::vector<double>& values, std::int64_t count) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

// One token, step by step.
std::vector<int> choose(const std::vector<double>& logits, const std::vector<double>& bias,
                        const RouterSpec& spec) {
  const auto size = static_cast<std::size_t>(spec.num_experts / spec.num_groups);
  std::vector<double> scores, group_scores;
  for (std::size_t expert = 0; expert < logits.size(); ++expert) {
    scores.push_back(1 / (1 + std::exp(-logits[expert])) + bias[expert]);
  }
  for (std::size_t begin = 0; begin < scores.size(); begin += size) {
    std::vector<double> group(scores.begin() + begin, scores.begin() + begin + size);
    std::sort(group.rbegin(), group.rend());
    group_scores.push_back(group[0] + group[1]);
  }
  std::vector<double> allowed(scores.size(), -1e9);
  for (const int group : best(group_scores, spec.top_groups)) {
    std::copy_n(scores.begin() + group * size, size, allowed.begin() + group * size);
  }
  return best(allowed, spec.top_k);
}

std::vector<double> values_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<double>(), tensor.const_data_ptr<double>() + tensor.numel()};
}

TEST(ExpertChoice, TakesTheBestOfTheBestGroupsByScoreAndBias) {
  for (const RouterSpec& spec :
       {spec_of(6, 2, 1, 1), spec_of(8, 3, 4, 2), spec_of(9, 2, 3, 1), spec_of(16, 8, 4, 4)}) {
    const at::Tensor logits = random_tensor({50, spec.num_experts}, at::kDouble);
    const at::Tensor bias = random_tensor({spec.num_experts}, at::kDouble).mul(0.3);
    const at::Tensor indices = choose_experts(logits, spec, bias);
    ASSERT_EQ(indices.sizes(), at::IntArrayRef({50, spec.top_k}));
    for (std::int64_t token = 0; token < 50; ++token) {
      const std::vector<int> wanted = choose(values_of(logits[token]), values_of(bias), spec);
      const int* found = indices[token].const_data_ptr<int>();
      EXPECT_EQ(std::vector<int>(found, found + spec.top_k), wanted) << "token " << token;
    }
  }
}

TEST(ExpertChoice, TiesGoToTheLowerExpertAndGroup) {
  const at::Tensor logits = random_tensor({3, 1}).expand({3, 8}).contiguous();
  const at::Tensor indices = choose_experts(logits, spec_of(8, 3, 4, 2), at::zeros_like(logits[0]));
  EXPECT_TRUE(indices.equal(at::tensor({0, 1, 2}, at::kInt).expand({3, 3})));
}

TEST(ExpertChoice, NothingIsForcedWhereTheScoresDecide) {
  EXPECT_FALSE(choose_experts(random_tensor({3, 4}), {4, 2}, {}).defined());
}

TEST(ExpertChoice, RefusesWhatDoesNotFit) {
  const at::Tensor logits = random_tensor({3, 8}), bias = random_tensor({8});
  EXPECT_THROW(choose_experts(logits, spec_of(8, 2, 1, 1), {}), Error);
  EXPECT_THROW(choose_experts(logits, {8, 2}, bias), Error);
  EXPECT_THROW(choose_experts(logits, spec_of(8, 2, 1, 1), random_tensor({7})), Error);
  EXPECT_THROW(choose_experts(logits, spec_of(8, 2, 3, 1), bias), Error);
  EXPECT_THROW(choose_experts(logits, spec_of(8, 2, 2, 3), bias), Error);
}

}  // namespace
}  // namespace phalanx
