#include "ops/gated_mlp.h"

#include "core/error.h"
#include "ops/check.h"
#include "ops/threads.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

using testing::random_tensor;

// n, gate, up, down and, where `gated`, the output gate.
Tensors inputs(std::int64_t tokens, std::int64_t hidden, std::int64_t width, bool gated,
               at::ScalarType dtype = at::kFloat) {
  Tensors in = {random_tensor({tokens, hidden}, dtype),
                random_tensor({width, hidden}, at::kDouble).mul(0.3).to(dtype),
                random_tensor({width, hidden}, at::kDouble).mul(0.3).to(dtype),
                random_tensor({hidden, width}, at::kDouble).mul(0.3).to(dtype)};
  if (gated) {
    in.push_back(random_tensor({1, hidden}, at::kDouble).mul(0.3).to(dtype));
  }
  return in;
}

GatedMlpWeights weights_of(const Tensors& in) {
  return {{in[1], {}}, {in[2], {}}, {in[3], {}}, in.size() > 4 ? in[4] : at::Tensor()};
}
Tensors fused(const Tensors& in) { return {gated_mlp(in[0], weights_of(in))}; }
Tensors reference(const Tensors& in) { return {gated_mlp_reference(in[0], weights_of(in))}; }

TEST(GatedMlp, MatchesReference) {
  for (const bool gated : {false, true}) {
    for (const auto tokens : {1, 5, 70}) {
      testing::expect_matches_reference(fused, reference, inputs(tokens, 33, 17, gated), 1e-5);
      testing::expect_matches_reference(fused, reference, inputs(tokens, 64, 96, gated), 1e-5);
    }
    testing::expect_matches_reference(fused, reference, inputs(9, 32, 48, gated, at::kBFloat16), 4e-2);
  }
}

TEST(GatedMlp, GradientsInDoublePrecision) {
  testing::expect_gradients(fused, inputs(4, 6, 5, false, at::kDouble));
  testing::expect_gradients(fused, inputs(4, 6, 5, true, at::kDouble));
}

TEST(GatedMlp, FrozenWeightsGetNoGradientAndChangeNoOther) {
  const Tensors in = inputs(6, 8, 5, true, at::kDouble);
  const auto gradients = [&](unsigned chosen) {
    Tensors leaves, grads;
    for (std::size_t i = 0; i < in.size(); ++i) {
      leaves.push_back(in[i].detach().clone().set_requires_grad((chosen >> i & 1) != 0));
    }
    fused(leaves)[0].square().sum().backward();
    for (const at::Tensor& leaf : leaves) {
      grads.push_back(leaf.grad());
    }
    return grads;
  };
  const Tensors all = gradients(0b11111);
  for (unsigned chosen = 1; chosen < 0b11111; ++chosen) {
    const Tensors some = gradients(chosen);
    for (std::size_t i = 0; i < some.size(); ++i) {
      ASSERT_EQ(some[i].defined(), (chosen >> i & 1) != 0) << chosen;
      if (some[i].defined()) {
        EXPECT_LE(testing::relative_error(some[i], all[i]), 1e-12) << chosen << " " << i;
      }
    }
  }
}

TEST(GatedMlp, DoesNotDependOnTheNumberOfThreads) {
  const Tensors in = inputs(1100, 64, 32, true);
  const at::Tensor upstream = random_tensor({1100, 64});
  testing::expect_same_on_any_threads([&] {
    Tensors leaves;
    for (const at::Tensor& input : in) {
      leaves.push_back(input.detach().clone().requires_grad_());
    }
    Tensors results = fused(leaves);
    results[0].backward(upstream);
    results[0] = results[0].detach();
    for (const at::Tensor& leaf : leaves) {
      results.push_back(leaf.grad());
    }
    return results;
  });
}

TEST(GatedMlp, RefusesWhatDoesNotFit) {
  const auto refused = [&](std::size_t input, const at::Tensor& wrong) {
    Tensors in = inputs(5, 8, 4, true);
    in[input] = wrong;
    EXPECT_THROW(fused(in), Error) << "input " << input;
  };
  refused(0, random_tensor({5, 9}));
  refused(0, random_tensor({2, 5, 8}));
  refused(1, random_tensor({4, 8}, at::kBFloat16));
  refused(2, random_tensor({3, 8}));
  refused(3, random_tensor({8, 3}));
  refused(4, random_tensor({8}));
  const Tensors in = inputs(5, 8, 4, true);
  GatedMlpWeights weights = weights_of(in);
  weights.up.bias = random_tensor({4});
  EXPECT_THROW(gated_mlp(in[0], weights), Error);
}

}  // namespace
}  // namespace phalanx
