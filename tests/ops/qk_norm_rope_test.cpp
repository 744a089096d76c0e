#include "ops/qk_norm_rope.h"

#include "core/error.h"
#include "ops/check.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <gtest/gtest.h>

#include <cmath>

namespace phalanx {
namespace {

using testing::random_tensor;

RopeSpec rope_spec(std::int64_t rotary, double scaling = 1.0) {
  RopeSpec spec;
  spec.attention_scaling = scaling;
  for (std::int64_t i = 0; i < rotary / 2; ++i) {
    spec.inv_freq.push_back(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rotary)));
  }
  return spec;
}

RopeTable table(std::int64_t tokens, std::int64_t rotary, at::ScalarType dtype) {
  return make_rope_table(rope_spec(rotary), at::arange(tokens),
                         dtype == at::kDouble ? at::kDouble : at::kFloat);
}

// q [T, h, d], k [T, g, d], and the two norm weights unless `norm` is false.
Tensors random_inputs(std::int64_t tokens, std::int64_t q_heads, std::int64_t k_heads, std::int64_t size,
                      bool norm, at::ScalarType dtype = at::kFloat) {
  Tensors inputs = {random_tensor({tokens, q_heads, size}, dtype),
                    random_tensor({tokens, k_heads, size}, dtype)};
  if (norm) {
    inputs.push_back(random_tensor({size}, dtype));
    inputs.push_back(random_tensor({size}, dtype));
  }
  return inputs;
}

QkNormRopeInputs arguments(const Tensors& in, const RopeTable& rope) {
  QkNormRopeInputs result{in[0], in[1], std::nullopt, std::nullopt, rope.cos, rope.sin};
  if (in.size() > 2) {
    result.q_norm = in[2];
    result.k_norm = in[3];
  }
  return result;
}

testing::Function fused(const RopeTable& rope) {
  return [rope](const Tensors& in) {
    auto [q, k] = qk_norm_rope(arguments(in, rope));
    return Tensors{q, k};
  };
}

testing::Function reference(const RopeTable& rope) {
  return [rope](const Tensors& in) {
    auto [q, k] = qk_norm_rope_reference(arguments(in, rope));
    return Tensors{q, k};
  };
}

struct Shape {
  std::int64_t tokens, q_heads, k_heads, size, rotary;
};

TEST(QkNormRope, MatchesReference) {
  for (const Shape s : {Shape{1, 1, 1, 2, 2},
                        {3, 4, 2, 16, 16},
                        {130, 6, 1, 10, 10},
                        {65, 4, 4, 64, 64},
                        {7, 3, 1, 11, 6},
                        {5, 2, 1, 8, 0}}) {
    const RopeTable rope = table(s.tokens, s.rotary, at::kFloat);
    for (const bool norm : {true, false}) {
      testing::expect_matches_reference(fused(rope), reference(rope),
                                        random_inputs(s.tokens, s.q_heads, s.k_heads, s.size, norm), 5e-6);
    }
  }
}

TEST(QkNormRope, MatchesReferenceInBfloat16) {
  const RopeTable rope = table(9, 32, at::kBFloat16);
  testing::expect_matches_reference(fused(rope), reference(rope),
                                    random_inputs(9, 4, 2, 32, true, at::kBFloat16), 1e-2);
}

TEST(QkNormRope, GradientsInDoublePrecision) {
  for (const bool norm : {true, false}) {
    testing::expect_gradients(fused(table(5, 6, at::kDouble)), random_inputs(5, 3, 1, 8, norm, at::kDouble));
  }
}

TEST(QkNormRope, ReadsColumnsOfAFusedProduct) {
  const std::int64_t tokens = 6, size = 4;
  const RopeTable rope = table(tokens, size, at::kFloat);
  const at::Tensor qkv = random_tensor({tokens, (3 + 1 + 1) * size});
  const at::Tensor q = qkv.narrow(1, 0, 12).view({tokens, 3, size});
  const at::Tensor k = qkv.narrow(1, 12, 4).view({tokens, 1, size});
  const Tensors from_views = fused(rope)({q, k}), from_copies = fused(rope)({q.contiguous(), k.contiguous()});
  EXPECT_TRUE(from_views[0].equal(from_copies[0]));
  EXPECT_TRUE(from_views[1].equal(from_copies[1]));
}

TEST(QkNormRope, BackwardLaysGradientsSideBySide) {
  const RopeTable rope = table(6, 4, at::kFloat);
  const auto in = arguments(random_inputs(6, 3, 1, 4, true), rope);
  const at::Tensor grad_q = random_tensor({6, 3, 4}), grad_k = random_tensor({6, 1, 4}),
                   grad_v = random_tensor({6, 1, 4});
  const at::Tensor all = std::get<0>(qk_norm_rope_backward(grad_q, grad_k, grad_v, in));
  ASSERT_EQ(all.sizes(), at::IntArrayRef({6, 20}));
  EXPECT_TRUE(all.narrow(1, 16, 4).equal(grad_v.view({6, 4})));
  const at::Tensor without_v = std::get<0>(qk_norm_rope_backward(grad_q, grad_k, grad_v.narrow(1, 0, 0), in));
  EXPECT_TRUE(all.narrow(1, 0, 16).equal(without_v));
}

TEST(QkNormRope, SameOnAnyNumberOfThreads) {
  const RopeTable rope = table(1000, 32, at::kFloat);
  const auto in = arguments(random_inputs(1000, 8, 2, 32, true), rope);
  const at::Tensor grad_q = random_tensor({1000, 8, 32}), grad_k = random_tensor({1000, 2, 32});
  const auto run = [&](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const auto [q, k] = qk_norm_rope_forward(in);
    const auto [grad, grad_q_norm, grad_k_norm] = qk_norm_rope_backward(grad_q, grad_k, grad_k, in);
    at::set_num_threads(before);
    return Tensors{q, k, grad, grad_q_norm, grad_k_norm};
  };
  const Tensors one = run(1), two = run(2);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(one[i].equal(two[i])) << "result " << i;
  }
}

TEST(RopeTable, HoldsScaledCosinesOfThePositions) {
  const RopeSpec spec = rope_spec(4, /*scaling=*/1.5);
  const at::Tensor positions = at::arange(3, 5);
  const RopeTable rope = make_rope_table(spec, positions, at::kDouble);
  ASSERT_EQ(rope.cos.sizes(), at::IntArrayRef({2, 2}));
  EXPECT_NEAR(rope.cos[1][0].item<double>(), 1.5 * std::cos(4.0), 1e-15);
  EXPECT_NEAR(rope.sin[0][1].item<double>(), 1.5 * std::sin(3.0 * 0.01), 1e-15);
}

TEST(RopeTable, RefusesFloatingPositions) {
  EXPECT_THROW(make_rope_table(rope_spec(4), random_tensor({3}), at::kFloat), Error);
}

TEST(QkNormRope, RefusesOneNormWeight) {
  auto in = arguments(random_inputs(2, 1, 1, 4, true), table(2, 4, at::kFloat));
  in.k_norm.reset();
  EXPECT_THROW(qk_norm_rope(in), Error);
}

}  // namespace
}  // namespace phalanx
