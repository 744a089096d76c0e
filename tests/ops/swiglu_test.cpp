#include "ops/swiglu.h"

#include "ops/check.h"
#include "ops/cpu/exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace phalanx {
namespace {

using testing::random_tensor;

Tensors fused(const Tensors& in) { return {swiglu(in[0])}; }
Tensors reference(const Tensors& in) { return {swiglu_reference(in[0])}; }

TEST(Exp, WithinTwoUlpOfTheLibraryOverTheWholeRange) {
  double worst = 0;
  for (double x = -103.0; x < 88.7; x += 0.00137) {
    const float argument = static_cast<float>(x);
    const double expected = std::exp(static_cast<double>(argument));
    const float rounded = static_cast<float>(expected);
    const double ulp = std::nextafter(rounded, std::numeric_limits<float>::infinity()) - rounded;
    worst = std::max(worst, std::abs(static_cast<double>(cpu::exp(argument)) - expected) / ulp);
  }
  EXPECT_LE(worst, 2.0);
}

TEST(Exp, Limits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cpu::exp(0.0f), 1.0f);
  EXPECT_EQ(cpu::exp(-kInfinity), 0.0f);
  EXPECT_EQ(cpu::exp(-200.0f), 0.0f);
  EXPECT_EQ(cpu::exp(kInfinity), kInfinity);
  EXPECT_EQ(cpu::exp(89.0f), kInfinity);
  EXPECT_TRUE(std::isnan(cpu::exp(std::nanf(""))));
}

TEST(Swiglu, MatchesReference) {
  for (const auto rows : {1, 3, 130}) {
    for (const auto width : {1, 7, 64, 333}) {
      testing::expect_matches_reference(fused, reference, {random_tensor({rows, 2 * width})}, 2e-6);
    }
  }
}

TEST(Swiglu, MatchesReferenceInBfloat16) {
  testing::expect_matches_reference(fused, reference, {random_tensor({9, 96}, at::kBFloat16)}, 1e-2);
}

TEST(Swiglu, GradientsInDoublePrecision) {
  testing::expect_gradients(fused, {random_tensor({4, 18}, at::kDouble)});
}

TEST(Swiglu, LargeGatesSaturate) {
  const auto z = at::Tensor(random_tensor({2, 4}).mul(1000.0));
  testing::expect_matches_reference(fused, reference, {z}, 2e-6);
}

TEST(Swiglu, BackwardGivesTheActivationAgain) {
  const auto z = random_tensor({33, 26}), grad = random_tensor({33, 13});
  const auto [grad_z, a] = swiglu_backward(grad, z, /*want_activation=*/true);
  EXPECT_TRUE(a.equal(swiglu_forward(z)));
  const auto [grad_z_alone, none] = swiglu_backward(grad, z, /*want_activation=*/false);
  EXPECT_TRUE(grad_z.equal(grad_z_alone));
  EXPECT_FALSE(none.defined());
}

TEST(Swiglu, NoRows) { EXPECT_EQ(fused({random_tensor({0, 8})})[0].sizes(), at::IntArrayRef({0, 4})); }

}  // namespace
}  // namespace phalanx
