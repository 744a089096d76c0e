#include "ops/rms_norm.h"

#include "ops/check.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

using testing::random_tensor;

constexpr double kEps = 1e-6;

Tensors fused(const Tensors& in) { return {rms_norm(in[0], in[1], kEps)}; }
Tensors reference(const Tensors& in) { return {rms_norm_reference(in[0], in[1], kEps)}; }

TEST(RmsNorm, MatchesReference) {
  for (const auto rows : {1, 3, 130}) {
    for (const auto width : {2, 7, 64, 1000}) {
      testing::expect_matches_reference(fused, reference,
                                        {random_tensor({rows, width}), random_tensor({width})}, 5e-6);
    }
  }
}

TEST(RmsNorm, MatchesReferenceInBfloat16) {
  const Tensors inputs = {random_tensor({5, 96}, at::kBFloat16), random_tensor({96}, at::kBFloat16)};
  testing::expect_matches_reference(fused, reference, inputs, 2e-2);
}

TEST(RmsNorm, GradientsInDoublePrecision) {
  testing::expect_gradients(fused, {random_tensor({4, 9}, at::kDouble), random_tensor({9}, at::kDouble)});
}

TEST(RmsNorm, AddsTheGradientThatWentAround) {
  const auto x = random_tensor({70, 8}), weight = random_tensor({8}), grad = random_tensor({70, 8}),
             around = random_tensor({70, 8});
  const auto rstd = std::get<1>(rms_norm_forward(x, weight, kEps));
  const auto without = std::get<0>(rms_norm_backward(grad, x, weight, rstd, std::nullopt));
  const auto with = std::get<0>(rms_norm_backward(grad, x, weight, rstd, around));
  EXPECT_LE(testing::relative_error(with, without.add(around)), 1e-6);
}

TEST(RmsNorm, NoRows) {
  const auto y = fused({random_tensor({0, 8}), random_tensor({8})})[0];
  EXPECT_EQ(y.numel(), 0);
}

}  // namespace
}  // namespace phalanx
