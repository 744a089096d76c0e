#include "ops/router.h"

#include "core/error.h"
#include "ops/check.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace phalanx {
namespace {

using testing::random_tensor;
using testing::relative_error;

std::vector<RouterSpec> every_rule(std::int64_t experts, std::int64_t top_k) {
  std::vector<RouterSpec> specs;
  for (const auto score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid}) {
    for (const bool normalize : {false, true}) {
      specs.push_back({experts, top_k, score, normalize, normalize ? 2.5 : 1.0});
    }
  }
  return specs;
}

testing::Function fused(const RouterSpec& spec) {
  return [spec](const Tensors& in) -> Tensors {
    const Routing routing = router(in[0], spec);
    return {routing.weights, routing.indices};
  };
}

testing::Function reference(const RouterSpec& spec) {
  return [spec](const Tensors& in) -> Tensors {
    const Routing routing = router_reference(in[0], spec);
    return {routing.weights, routing.indices};
  };
}

TEST(Router, MatchesReference) {
  for (const auto experts : {3, 8, 128}) {
    for (const auto top_k : {1, 2, 3, 8}) {
      for (const RouterSpec& spec : every_rule(experts, std::min(top_k, experts))) {
        if (spec.normalize && top_k == 1) {
          continue;  // the gradient is zero: WeightsThatCannotChangeHaveNoGradient
        }
        for (const auto tokens : {1, 50}) {
          testing::expect_matches_reference(fused(spec), reference(spec), {random_tensor({tokens, experts})},
                                            2e-5);
        }
      }
    }
  }
}

TEST(Router, MatchesReferenceInBfloat16) {
  for (const RouterSpec& spec : every_rule(16, 4)) {
    testing::expect_matches_reference(fused(spec), reference(spec), {random_tensor({40, 16}, at::kBFloat16)},
                                      1e-2);
  }
}

TEST(Router, GradientsInDoublePrecision) {
  for (const RouterSpec& spec : every_rule(7, 3)) {
    testing::expect_gradients(fused(spec), {random_tensor({6, 7}, at::kDouble)});
  }
}

TEST(Router, WeightsThatCannotChangeHaveNoGradient) {
  for (const RouterSpec& spec : {RouterSpec{8, 1, ScoreFunction::kSoftmax, true},
                                 RouterSpec{8, 1, ScoreFunction::kSigmoid, true}, RouterSpec{1, 1}}) {
    const auto logits = random_tensor({10, spec.num_experts}).requires_grad_();
    const auto weights = router(logits, spec).weights;
    EXPECT_LE(relative_error(weights, at::ones({10, 1})), 1e-6);
    weights.sum().backward();
    EXPECT_LE(logits.grad().abs().max().item<double>(), 1e-6);
  }
}

TEST(Router, TiesGoToTheLowerIndex) {
  const RouterSpec spec{6, 4};
  const auto equal = router(at::zeros({2, 6}), spec);
  EXPECT_TRUE(equal.indices.equal(at::tensor({0, 1, 2, 3, 0, 1, 2, 3}, at::kInt).view({2, 4})));
  EXPECT_LE(relative_error(equal.weights, at::full({2, 4}, 1.0 / 6)), 1e-6);
  const auto some = router(at::tensor({1.0, 3.0, 2.0, 3.0, 2.0, 2.0}, at::kFloat).view({1, 6}), spec);
  EXPECT_TRUE(some.indices.equal(at::tensor({1, 3, 2, 4}, at::kInt).view({1, 4})));
}

TEST(Router, LogitsFarApart) {
  const auto logits = at::tensor({-3e4, 3e4, 0.0, 1e-30}, at::kFloat).view({1, 4});
  for (const RouterSpec& spec : every_rule(4, 2)) {
    testing::expect_matches_reference(fused(spec), reference(spec), {logits}, 2e-5);
  }
}

TEST(Router, NotANumberStillGivesExpertsThatExist) {
  const auto logits = at::full({3, 5}, std::numeric_limits<float>::quiet_NaN());
  const auto indices = router(logits, {5, 2}).indices;
  EXPECT_TRUE(indices.ge(0).logical_and(indices.lt(5)).all().item<bool>());
}

TEST(Router, ReplayForcesTheChoice) {
  const auto logits = random_tensor({20, 8}, at::kDouble);
  for (const RouterSpec& spec : every_rule(8, 2)) {
    const auto replay = at::tensor({7, 0}, at::kInt).expand({20, 2}).contiguous();
    const auto replayed = [&](const Tensors& in) -> Tensors { return {router(in[0], spec, replay).weights}; };
    const auto expected = [&](const Tensors& in) -> Tensors {
      return {router_reference(in[0], spec, replay).weights};
    };
    testing::expect_matches_reference(replayed, expected, {logits}, 1e-12);
    EXPECT_TRUE(router(logits, spec, replay).indices.equal(replay));
  }
}

TEST(Router, AddsTheGradientThatWentPastTheWeights) {
  const RouterSpec spec{8, 2};
  const auto logits = random_tensor({20, 8}), grad = random_tensor({20, 2}), past = random_tensor({20, 8});
  const auto indices = router_forward(logits, spec, {}).indices;
  const auto without = router_backward(grad, std::nullopt, logits, indices, spec);
  EXPECT_LE(relative_error(router_backward(grad, past, logits, indices, spec), without.add(past)), 1e-6);
}

TEST(Router, RefusesWhatDoesNotFit) {
  const auto logits = random_tensor({4, 8});
  EXPECT_THROW(router(logits, {6, 2}), Error);
  EXPECT_THROW(router(logits, {8, 9}), Error);
  EXPECT_THROW(router(logits, {8, 0}), Error);
  EXPECT_THROW(router(logits, {8, 2}, at::zeros({4, 3}, at::kInt)), Error);
  EXPECT_THROW(router(logits, {8, 2}, at::full({4, 2}, 8, at::TensorOptions().dtype(at::kInt))), Error);
}

}  // namespace
}  // namespace phalanx
