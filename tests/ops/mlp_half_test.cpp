#include "ops/mlp_half.h"

#include "core/error.h"
#include "ops/check.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

using testing::random_tensor;

constexpr double kEps = 1e-6;

MlpWeights weights_of(const Tensors& in) { return {in[1], {in[2], {}}, {in[3], {}}, {in[4], {}}}; }
Tensors fused(const Tensors& in) { return {mlp_half(in[0], weights_of(in), kEps)}; }
Tensors reference(const Tensors& in) { return {mlp_half_reference(in[0], weights_of(in), kEps)}; }

Tensors inputs(std::int64_t tokens, std::int64_t hidden, std::int64_t width, at::ScalarType dtype) {
  return {random_tensor({tokens, hidden}, dtype), random_tensor({hidden}, dtype),
          random_tensor({width, hidden}, dtype), random_tensor({width, hidden}, dtype),
          random_tensor({hidden, width}, dtype)};
}

TEST(MlpHalf, MatchesReference) {
  for (const auto tokens : {1, 5, 70}) {
    testing::expect_matches_reference(fused, reference, inputs(tokens, 33, 17, at::kFloat), 1e-5);
    testing::expect_matches_reference(fused, reference, inputs(tokens, 64, 96, at::kFloat), 1e-5);
  }
}

TEST(MlpHalf, MatchesReferenceInBfloat16) {
  testing::expect_matches_reference(fused, reference, inputs(9, 32, 48, at::kBFloat16), 4e-2);
}

TEST(MlpHalf, GradientsInDoublePrecision) { testing::expect_gradients(fused, inputs(4, 6, 5, at::kDouble)); }

TEST(MlpHalf, FrozenWeightsGetNoGradient) {
  Tensors in = inputs(4, 6, 5, at::kFloat);
  in[0].requires_grad_();
  in[3].requires_grad_();
  fused(in)[0].sum().backward();
  EXPECT_TRUE(in[0].grad().defined() && in[3].grad().defined());
  EXPECT_FALSE(in[1].grad().defined() || in[2].grad().defined() || in[4].grad().defined());
}

TEST(MlpHalf, ABiasIsRefused) {
  const Tensors in = inputs(2, 6, 5, at::kFloat);
  MlpWeights weights = weights_of(in);
  weights.up.bias = random_tensor({5});
  EXPECT_THROW(mlp_half(in[0], weights, kEps), Error);
}

}  // namespace
}  // namespace phalanx
