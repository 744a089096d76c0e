#include "ops/experts.h"

#include "core/error.h"
#include "ops/check.h"
#include "ops/threads.h"

#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

namespace phalanx {
namespace {

using testing::random_tensor;
using enum ExpertsImplementation;

// Experts 0 .. chosen - 1 of each token in random order, so that the last ones get none when chosen < E.
at::Tensor distinct_indices(std::int64_t tokens, std::int64_t top_k, std::int64_t chosen) {
  return at::rand({tokens, chosen}).argsort(std::int64_t{1}).slice(1, 0, top_k).to(at::kInt).contiguous();
}

struct Shape {
  std::int64_t tokens, hidden, width, experts, top_k, chosen;
};

Tensors random_inputs(const Shape& s, at::ScalarType dtype) {
  return {random_tensor({s.tokens, s.hidden}, dtype), distinct_indices(s.tokens, s.top_k, s.chosen),
          random_tensor({s.tokens, s.top_k}, dtype),
          random_tensor({s.experts, 2 * s.width, s.hidden}, at::kDouble).mul(0.2).to(dtype),
          random_tensor({s.experts, s.hidden, s.width}, at::kDouble).mul(0.2).to(dtype)};
}

testing::Function fused(ExpertsImplementation implementation) {
  return [implementation](const Tensors& in) -> Tensors {
    return {experts(in[0], in[1], in[2], {in[3], in[4]}, implementation)};
  };
}

Tensors reference(const Tensors& in) { return {experts_reference(in[0], in[1], in[2], {in[3], in[4]})}; }

const std::vector<Shape> kShapes = {{40, 96, 32, 3, 1, 3},
                                    {1, 64, 16, 8, 2, 8},
                                    {50, 16, 24, 8, 8, 8},
                                    {30, 32, 8, 6, 1, 1},
                                    {300, 32, 16, 5, 3, 4}};

TEST(Experts, EveryImplementationMatchesReference) {
  for (const auto implementation : {kAuto, kEager, kBatchedMm, kGroupedMm}) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(implementation == kAuto ? "auto" : "explicit");
      testing::expect_matches_reference(fused(implementation), reference, random_inputs(shape, at::kFloat),
                                        1e-5);
    }
  }
}

TEST(Experts, OddSizes) {
  for (const auto implementation : {kAuto, kEager, kBatchedMm}) {
    testing::expect_matches_reference(fused(implementation), reference,
                                      random_inputs({17, 7, 5, 3, 2, 3}, at::kFloat), 1e-5);
  }
}

TEST(Experts, MatchesReferenceInBfloat16) {
  for (const auto implementation : {kEager, kBatchedMm, kGroupedMm}) {
    testing::expect_matches_reference(fused(implementation), reference,
                                      random_inputs({40, 96, 32, 3, 2, 3}, at::kBFloat16), 3e-2);
  }
}

TEST(Experts, GradientsInDoublePrecision) {
  for (const auto implementation : {kEager, kBatchedMm}) {
    testing::expect_gradients(fused(implementation), random_inputs({6, 5, 4, 4, 2, 3}, at::kDouble));
  }
}

// Every choice of inputs that want a gradient gives the same gradients as all of them together.
TEST(Experts, RespectsWhatNeedsAGradient) {
  const Tensors in = random_inputs({20, 8, 4, 4, 2, 4}, at::kDouble);
  const at::Tensor upstream = random_tensor({20, 8}, at::kDouble);
  const std::vector<std::size_t> differentiable = {0, 2, 3, 4};
  const auto gradients = [&](unsigned chosen) {
    Tensors leaves = in;
    for (std::size_t i = 0; i < differentiable.size(); ++i) {
      leaves[differentiable[i]] =
          in[differentiable[i]].detach().clone().set_requires_grad((chosen >> i & 1) != 0);
    }
    fused(kAuto)(leaves)[0].backward(upstream);
    Tensors grads;
    for (const std::size_t i : differentiable) {
      grads.push_back(leaves[i].grad());
    }
    return grads;
  };
  const Tensors all = gradients(0b1111);
  for (unsigned chosen = 1; chosen < 0b1111; ++chosen) {
    const Tensors some = gradients(chosen);
    for (std::size_t i = 0; i < some.size(); ++i) {
      ASSERT_EQ(some[i].defined(), (chosen >> i & 1) != 0);
      if (some[i].defined()) {
        EXPECT_LE(testing::relative_error(some[i], all[i]), 1e-12) << chosen << " " << i;
      }
    }
  }
}

TEST(Experts, DoesNotDependOnTheNumberOfThreads) {
  const Tensors in = random_inputs({700, 64, 32, 5, 2, 4}, at::kFloat);
  const at::Tensor upstream = random_tensor({700, 64});
  testing::expect_same_on_any_threads([&] {
    Tensors leaves = in;
    for (const std::size_t i : {0, 2, 3, 4}) {
      leaves[i] = in[i].detach().clone().requires_grad_();
    }
    const at::Tensor out = fused(kAuto)(leaves)[0];
    out.backward(upstream);
    return Tensors{out.detach(), leaves[0].grad(), leaves[2].grad(), leaves[3].grad(), leaves[4].grad()};
  });
}

TEST(Experts, RefusesWhatDoesNotFit) {
  const Tensors in = random_inputs({4, 8, 4, 3, 2, 3}, at::kFloat);
  const auto refused = [&](std::size_t input, const at::Tensor& wrong) {
    Tensors inputs = in;
    inputs[input] = wrong;
    EXPECT_THROW(fused(kAuto)(inputs), Error) << "input " << input;
  };
  refused(0, random_tensor({4, 9}));
  refused(0, in[0].to(at::kBFloat16));
  refused(1, at::zeros({4, 3}, at::kInt));
  refused(1, in[1].to(at::kLong));
  refused(1, at::full({4, 2}, 3, at::TensorOptions().dtype(at::kInt)));
  refused(4, random_tensor({3, 8, 5}));
  EXPECT_THROW(fused(kGroupedMm)(random_inputs({4, 8, 4, 3, 2, 3}, at::kDouble)), Error);
}

}  // namespace
}  // namespace phalanx
