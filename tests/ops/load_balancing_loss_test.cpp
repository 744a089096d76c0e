#include "ops/load_balancing_loss.h"

#include "core/error.h"
#include "ops/check.h"
#include "ops/threads.h"

#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

namespace phalanx {
namespace {

using testing::random_tensor;

testing::Function fused(std::int64_t top_k) {
  return [top_k](const Tensors& in) -> Tensors { return {load_balancing_loss(in, top_k)}; };
}

testing::Function reference(std::int64_t top_k) {
  return [top_k](const Tensors& in) -> Tensors { return {load_balancing_loss_reference(in, top_k)}; };
}

TEST(LoadBalancingLoss, MatchesReference) {
  for (const auto experts : {3, 8, 128}) {
    for (const auto top_k : {1, 2}) {
      for (const auto tokens : {1, 150}) {
        const Tensors logits = {random_tensor({tokens, experts}), random_tensor({tokens, experts}),
                                random_tensor({tokens, experts})};
        testing::expect_matches_reference(fused(top_k), reference(top_k), logits, 1e-5);
      }
    }
  }
}

TEST(LoadBalancingLoss, MatchesReferenceInBfloat16AndIsSingle) {
  const Tensors logits = {random_tensor({50, 16}, at::kBFloat16), random_tensor({50, 16}, at::kBFloat16)};
  EXPECT_EQ(load_balancing_loss(logits, 2).scalar_type(), at::kFloat);
  testing::expect_matches_reference(fused(2), reference(2), logits, 2e-2);
}

TEST(LoadBalancingLoss, GradientsInDoublePrecision) {
  testing::expect_gradients(fused(2),
                            {random_tensor({9, 5}, at::kDouble), random_tensor({9, 5}, at::kDouble)});
}

TEST(LoadBalancingLoss, EvenScoresGiveTopK) {
  // Every score is 1 / E: E * sum over e of (choices / rows) / E = top_k, whichever experts the ties choose.
  EXPECT_NEAR(load_balancing_loss({at::zeros({7, 6})}, 4).item<double>(), 4.0, 1e-6);
}

TEST(LoadBalancingLoss, DoesNotDependOnTheNumberOfThreads) {
  const Tensors logits = {random_tensor({5000, 16}), random_tensor({5000, 16})};
  testing::expect_same_on_any_threads([&] {
    const at::Tensor leaf = logits[1].clone().requires_grad_();
    const at::Tensor loss = load_balancing_loss({logits[0], leaf}, 2);
    loss.backward();
    return Tensors{loss.detach(), leaf.grad()};
  });
}

TEST(LoadBalancingLoss, RefusesWhatDoesNotFit) {
  const at::Tensor logits = random_tensor({4, 8});
  EXPECT_THROW(load_balancing_loss({}, 2), Error);
  EXPECT_THROW(load_balancing_loss({logits, random_tensor({4, 6})}, 2), Error);
  EXPECT_THROW(load_balancing_loss({logits, logits.to(at::kBFloat16)}, 2), Error);
  EXPECT_THROW(load_balancing_loss({logits}, 9), Error);
}

}  // namespace
}  // namespace phalanx
