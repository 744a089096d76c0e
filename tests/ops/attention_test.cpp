#include "ops/attention.h"

#include "core/error.h"
#include "ops/attention_half.h"
#include "ops/check.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace phalanx {
namespace {

using testing::random_tensor;

constexpr double kEps = 1e-6;

AttentionSpec make_spec(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                        std::optional<std::int64_t> window = std::nullopt) {
  AttentionSpec spec;
  spec.num_heads = heads;
  spec.num_kv_heads = kv_heads;
  spec.head_dim = head_dim;
  spec.scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  spec.sliding_window = window;
  spec.qk_norm = QkNorm::kPerHead;
  return spec;
}

RopeTable rope_of(const AttentionSpec& spec, const SequenceLayout& layout, at::ScalarType compute) {
  RopeSpec rope;
  for (std::int64_t i = 0; i < spec.head_dim / 2; ++i) {
    rope.inv_freq.push_back(
        std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(spec.head_dim)));
  }
  return make_rope_table(rope, layout.position_ids, compute);
}

// Inputs of the half with q, k and v apart: x, norm, q, k, v, o, their biases, norms of q and k.
Tensors half_inputs(const AttentionSpec& spec, std::int64_t tokens, std::int64_t hidden,
                    at::ScalarType dtype) {
  const std::int64_t query = spec.num_heads * spec.head_dim, kv = spec.num_kv_heads * spec.head_dim;
  const bool all_heads = spec.qk_norm == QkNorm::kAllHeads;
  return {random_tensor({tokens, hidden}, dtype),
          random_tensor({hidden}, dtype),
          random_tensor({query, hidden}, dtype).mul(0.2),
          random_tensor({kv, hidden}, dtype).mul(0.2),
          random_tensor({kv, hidden}, dtype).mul(0.2),
          random_tensor({hidden, query}, dtype).mul(0.2),
          random_tensor({query}, dtype),
          random_tensor({kv}, dtype),
          random_tensor({kv}, dtype),
          random_tensor({hidden}, dtype),
          random_tensor({all_heads ? query : spec.head_dim}, dtype),
          random_tensor({all_heads ? kv : spec.head_dim}, dtype)};
}

AttentionWeights weights_of(const Tensors& in) {
  return {in[1], {in[2], in[6]}, {in[3], in[7]}, {in[4], in[8]}, {in[5], in[9]}, in[10], in[11]};
}

struct Half {
  AttentionSpec spec;
  SequenceLayout layout;
  RopeTable rope;
  testing::Function fused = [this](const Tensors& in) -> Tensors {
    return {attention_half(in[0], weights_of(in), spec, kEps, rope, layout)};
  };
  testing::Function reference = [this](const Tensors& in) -> Tensors {
    return {attention_half_reference(in[0], weights_of(in), spec, kEps, rope, layout)};
  };
};

void expect_half(const AttentionSpec& spec, const std::vector<std::int64_t>& lengths, at::ScalarType dtype,
                 double tolerance) {
  const SequenceLayout layout = layout_from_lengths(lengths);
  const Half half{spec, layout, rope_of(spec, layout, dtype == at::kDouble ? at::kDouble : at::kFloat)};
  testing::expect_matches_reference(half.fused, half.reference, half_inputs(spec, layout.tokens(), 24, dtype),
                                    tolerance);
}

TEST(Attention, HalfMatchesReference) {
  const std::vector<std::vector<std::int64_t>> layouts = {{9}, {5, 5, 5}, {3, 1, 1, 7, 2}, {33, 64}};
  for (const auto& lengths : layouts) {
    expect_half(make_spec(4, 2, 8), lengths, at::kFloat, 1e-5);
    expect_half(make_spec(3, 1, 6), lengths, at::kFloat, 1e-5);
    expect_half(make_spec(2, 2, 10, 3), lengths, at::kFloat, 1e-5);
  }
}

AttentionSpec over_all_heads(AttentionSpec spec, std::optional<double> clip) {
  spec.qk_norm = QkNorm::kAllHeads;
  spec.clip_qkv = clip;
  return spec;
}

TEST(Attention, NormsOverAllHeadsAndClippedProjections) {
  for (const std::optional<double> clip : {std::optional<double>(), std::optional<double>(0.4)}) {
    expect_half(over_all_heads(make_spec(4, 2, 8), clip), {9, 3}, at::kFloat, 1e-5);
    expect_half(over_all_heads(make_spec(3, 1, 6), clip), {5, 5}, at::kFloat, 1e-5);
  }
  AttentionSpec per_head = make_spec(4, 2, 8);
  per_head.clip_qkv = 0.4;
  expect_half(per_head, {7}, at::kFloat, 1e-5);
  expect_half(over_all_heads(make_spec(4, 2, 8), 0.4), {7, 5}, at::kBFloat16, 6e-2);
}

TEST(Attention, GradientsOfNormsOverAllHeadsInDoublePrecision) {
  const AttentionSpec spec = over_all_heads(make_spec(2, 1, 4), 1.5);
  const SequenceLayout layout = layout_from_lengths({4, 1});
  const Half half{spec, layout, rope_of(spec, layout, at::kDouble)};
  testing::expect_gradients(half.fused, half_inputs(spec, 5, 6, at::kDouble));
}

// One key has the weight 1 whatever q and k are: their gradient is rounding, compared with nothing.
TEST(Attention, OneTokenAlone) {
  const AttentionSpec spec = make_spec(4, 2, 8);
  const SequenceLayout layout = layout_from_lengths({1});
  const RopeTable rope = rope_of(spec, layout, at::kFloat);
  Tensors in = half_inputs(spec, 1, 24, at::kFloat);
  Tensors expected = in;
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i] = in[i].clone().requires_grad_();
    expected[i] = in[i].detach().clone().requires_grad_();
  }
  const at::Tensor out = attention_half(in[0], weights_of(in), spec, kEps, rope, layout);
  const at::Tensor reference =
      attention_half_reference(expected[0], weights_of(expected), spec, kEps, rope, layout);
  EXPECT_LE(testing::relative_error(out.detach(), reference.detach()), 1e-5);
  out.sum().backward();
  reference.sum().backward();
  for (const int with_gradient : {0, 1, 4, 5, 8, 9}) {
    EXPECT_LE(testing::relative_error(in[with_gradient].grad(), expected[with_gradient].grad()), 1e-5)
        << with_gradient;
  }
  for (const int without : {2, 3, 6, 7, 10, 11}) {
    EXPECT_LE(in[without].grad().abs().max().item<double>(), 1e-5) << without;
  }
}

TEST(Attention, HalfMatchesReferenceInBfloat16) {
  expect_half(make_spec(4, 2, 8), {7, 5}, at::kBFloat16, 6e-2);
}

TEST(Attention, HalfGradientsInDoublePrecision) {
  const AttentionSpec spec = make_spec(2, 1, 4, 2);
  const SequenceLayout layout = layout_from_lengths({4, 1});
  const Half half{spec, layout, rope_of(spec, layout, at::kDouble)};
  testing::expect_gradients(half.fused, half_inputs(spec, 5, 6, at::kDouble));
}

TEST(Attention, WithoutNormsAndBiases) {
  AttentionSpec spec = make_spec(2, 2, 4);
  spec.qk_norm = QkNorm::kNone;
  const SequenceLayout layout = layout_from_lengths({6});
  const RopeTable rope = rope_of(spec, layout, at::kFloat);
  const auto bare = [](const Tensors& in) {
    AttentionWeights weights = weights_of(in);
    weights.q.bias = weights.k.bias = weights.v.bias = weights.o.bias = weights.q_norm = weights.k_norm =
        at::Tensor();
    return weights;
  };
  Tensors in = half_inputs(spec, 6, 12, at::kFloat);
  in.resize(6);
  const auto full = [&](const Tensors& given) {
    Tensors result = given;
    result.resize(12);
    return bare(result);
  };
  testing::expect_matches_reference(
      [&](const Tensors& given) -> Tensors {
        return {attention_half(given[0], full(given), spec, kEps, rope, layout)};
      },
      [&](const Tensors& given) -> Tensors {
        return {attention_half_reference(given[0], full(given), spec, kEps, rope, layout)};
      },
      in, 1e-5);
}

TEST(Attention, WeightsSideBySideGiveTheSame) {
  const AttentionSpec spec = make_spec(4, 2, 8);
  const SequenceLayout layout = layout_from_lengths({5, 8});
  const RopeTable rope = rope_of(spec, layout, at::kFloat);
  Tensors apart = half_inputs(spec, 13, 24, at::kFloat);
  Tensors together = apart;
  const at::Tensor arena = at::cat({apart[2], apart[3], apart[4]});
  together[2] = arena.narrow(0, 0, 32);
  together[3] = arena.narrow(0, 32, 16);
  together[4] = arena.narrow(0, 48, 16);
  EXPECT_TRUE(lie_side_by_side(together[2], together[3], together[4]));
  EXPECT_FALSE(lie_side_by_side(apart[2], apart[3], apart[4]));
  EXPECT_FALSE(lie_side_by_side(together[2], together[4], together[3]));
  const auto run = [&](const Tensors& in) {
    return attention_half(in[0], weights_of(in), spec, kEps, rope, layout);
  };
  EXPECT_LE(testing::relative_error(run(together), run(apart)), 1e-6);
  const at::Tensor x = apart[0].clone().requires_grad_();
  at::Tensor grads[2];
  for (int i = 0; i < 2; ++i) {
    Tensors in = i == 0 ? apart : together;
    in[0] = x;
    run(in).sum().backward();
    grads[i] = x.grad().clone();
    x.mutable_grad().reset();
  }
  EXPECT_LE(testing::relative_error(grads[1], grads[0]), 1e-5);
}

TEST(Attention, FrozenWeightsGetNoGradient) {
  const AttentionSpec spec = make_spec(2, 1, 4);
  const SequenceLayout layout = layout_from_lengths({4});
  Tensors in = half_inputs(spec, 4, 6, at::kFloat);
  in[0].requires_grad_();
  in[3].requires_grad_();
  attention_half(in[0], weights_of(in), spec, kEps, rope_of(spec, layout, at::kFloat), layout)
      .sum()
      .backward();
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(in[i].grad().defined(), i == 0 || i == 3) << i;
  }
}

void expect_any_input_trains_alone(const AttentionSpec& spec) {
  const SequenceLayout layout = layout_from_lengths({4, 3});
  const Half half{spec, layout, rope_of(spec, layout, at::kDouble)};
  const Tensors in = half_inputs(spec, 7, 6, at::kDouble);
  for (std::size_t trained = 0; trained < in.size(); ++trained) {
    Tensors gradients;
    for (const testing::Function* half_of : {&half.fused, &half.reference}) {
      Tensors leaves = in;
      leaves[trained] = in[trained].detach().clone().requires_grad_();
      (*half_of)(leaves)[0].square().sum().backward();
      gradients.push_back(leaves[trained].grad());
    }
    ASSERT_TRUE(gradients[0].defined()) << trained;
    EXPECT_LE((gradients[0] - gradients[1]).abs().max().item<double>(), 1e-9) << trained;
  }
}

TEST(Attention, TrainsAnySingleInputAlone) {
  expect_any_input_trains_alone(make_spec(2, 1, 4));
  expect_any_input_trains_alone(over_all_heads(make_spec(2, 1, 4), 0.5));
}

TEST(Attention, TheSameOnAnyNumberOfThreads) {
  const AttentionSpec spec = make_spec(4, 2, 8);
  const SequenceLayout layout = layout_from_lengths({40, 40, 17});
  const RopeTable rope = rope_of(spec, layout, at::kFloat);
  const Tensors in = half_inputs(spec, 97, 24, at::kFloat);
  const int threads = at::get_num_threads();
  Tensors results;
  for (const int count : {1, 2}) {
    at::set_num_threads(count);
    Tensors leaves = in;
    for (at::Tensor& leaf : leaves) {
      leaf = leaf.clone().requires_grad_();
    }
    const at::Tensor out = attention_half(leaves[0], weights_of(leaves), spec, kEps, rope, layout);
    out.sum().backward();
    results.push_back(out.detach());
    results.push_back(leaves[0].grad());
    results.push_back(leaves[10].grad());
  }
  at::set_num_threads(threads);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(results[i].equal(results[i + 3])) << i;
  }
}

TEST(Attention, ShapesThatDoNotFitAreRefused) {
  const AttentionSpec spec = make_spec(2, 1, 4);
  const SequenceLayout layout = layout_from_lengths({4});
  const RopeTable rope = rope_of(spec, layout, at::kFloat);
  Tensors in = half_inputs(spec, 4, 6, at::kFloat);
  const auto expect_refusal = [&](const char* message) {
    try {
      attention_half(in[0], weights_of(in), spec, kEps, rope, layout);
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  const at::Tensor k = std::exchange(in[3], random_tensor({5, 6}));
  expect_refusal("k has shape [5, 6]; expected [4, 6]");
  in[3] = k;
  in[10] = random_tensor({8});
  expect_refusal("q_norm has shape [8]; expected [4]");
}

// Which kernel a GPU would run; no GPU is needed to see it.
TEST(AttentionKernelChoice, FollowsDtypeLengthsAndWindow) {
  using enum AttentionKernel;
  const auto choose = [](const std::vector<std::int64_t>& lengths, std::optional<std::int64_t> window,
                         at::ScalarType dtype, bool deterministic) {
    return choose_attention_kernel(make_spec(4, 2, 64, window), layout_from_lengths(lengths), dtype,
                                   deterministic);
  };
  EXPECT_EQ(choose({256, 256}, std::nullopt, at::kBFloat16, false), kCudnn);
  EXPECT_EQ(choose({256, 256}, 256, at::kBFloat16, false), kCudnn);  // the window cuts off nothing
  EXPECT_EQ(choose({256, 256}, 255, at::kBFloat16, false), kFlash);
  EXPECT_EQ(choose({256, 256}, std::nullopt, at::kBFloat16, true), kFlash);
  EXPECT_EQ(choose({256, 128}, std::nullopt, at::kBFloat16, false), kFlash);
  EXPECT_EQ(choose({250, 250}, std::nullopt, at::kBFloat16, false),
            kFlash);  // a new plan for each such length
  EXPECT_EQ(choose({256, 256}, std::nullopt, at::kFloat, false), kEfficient);
  EXPECT_THROW(choose({256}, std::nullopt, at::kDouble, false), Error);
  EXPECT_THROW(choose_attention_kernel(make_spec(4, 2, 20), layout_from_lengths({8}), at::kBFloat16, false),
               Error);
}

}  // namespace
}  // namespace phalanx
