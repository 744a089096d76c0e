#include "ops/moe_half.h"

#include "core/error.h"
#include "ops/check.h"
#include "ops/threads.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

namespace phalanx {
namespace {

using testing::random_tensor;

constexpr double kEps = 1e-6;

Tensors random_inputs(std::int64_t tokens, std::int64_t hidden, std::int64_t width, std::int64_t experts,
                      at::ScalarType dtype) {
  return {random_tensor({tokens, hidden}, dtype), random_tensor({hidden}, dtype),
          random_tensor({experts, hidden}, at::kDouble).mul(0.3).to(dtype),
          random_tensor({experts, 2 * width, hidden}, at::kDouble).mul(0.2).to(dtype),
          random_tensor({experts, hidden, width}, at::kDouble).mul(0.2).to(dtype)};
}

// A shared expert of width S, and its output gate where `gated`, behind the inputs.
Tensors with_shared_expert(Tensors in, std::int64_t width, bool gated) {
  const std::int64_t hidden = in[0].size(1);
  std::vector<std::vector<std::int64_t>> shapes = {{width, hidden}, {width, hidden}, {hidden, width}};
  if (gated) {
    shapes.push_back({1, hidden});
  }
  for (const auto& shape : shapes) {
    in.push_back(random_tensor(shape, at::kDouble).mul(0.2).to(in[0].scalar_type()));
  }
  return in;
}

MoeWeights weights_of(const Tensors& in) {
  MoeWeights weights{in[1], in[2], {in[3], in[4]}};
  if (in.size() > 5) {
    weights.shared = {{in[5], {}}, {in[6], {}}, {in[7], {}}, in.size() > 8 ? in[8] : at::Tensor()};
  }
  return weights;
}

Tensors outputs_of(const MoeResult& result) {
  Tensors outputs = {result.out, result.expert_counts, result.expert_indices};
  if (result.router_logits.defined()) {
    outputs.push_back(result.router_logits);
  }
  return outputs;
}

testing::Function fused(const RouterSpec& spec, const MoeOptions& options = {}) {
  return [=](const Tensors& in) { return outputs_of(moe_half(in[0], weights_of(in), spec, kEps, options)); };
}

testing::Function reference(const RouterSpec& spec, const MoeOptions& options = {}) {
  return [=](const Tensors& in) {
    return outputs_of(moe_half_reference(in[0], weights_of(in), spec, kEps, options));
  };
}

// A bias in the router's rows that sends every token to expert 0 first, through one constant input feature.
Tensors one_expert_takes_all(Tensors in) {
  in[0].select(1, 0).fill_(1.0);
  in[1].select(0, 0).fill_(1.0);
  in[2].zero_();
  in[2][0][0].fill_(50.0);
  return in;
}

TEST(MoeHalf, MatchesReference) {
  for (const bool normalize : {false, true}) {
    for (const auto top_k : {1, 2, 3, 8}) {
      if (normalize && top_k == 1) {
        continue;  // the weight is 1 and the router has no gradient to compare
      }
      const RouterSpec spec{8, top_k, ScoreFunction::kSoftmax, normalize};
      testing::expect_matches_reference(fused(spec), reference(spec),
                                        random_inputs(30, 32, 16, 8, at::kFloat), 1e-5);
    }
  }
  const RouterSpec three{3, 2, ScoreFunction::kSoftmax, true};
  testing::expect_matches_reference(fused(three), reference(three), random_inputs(65, 96, 40, 3, at::kFloat),
                                    1e-5);
  const RouterSpec sigmoid{5, 2, ScoreFunction::kSigmoid, true, 2.5};
  testing::expect_matches_reference(fused(sigmoid), reference(sigmoid),
                                    random_inputs(21, 7, 5, 5, at::kFloat), 1e-5);
}

TEST(MoeHalf, WithASharedExpert) {
  const RouterSpec spec{6, 2, ScoreFunction::kSoftmax, true};
  for (const bool gated : {false, true}) {
    for (const auto tokens : {3, 30}) {
      testing::expect_matches_reference(
          fused(spec), reference(spec),
          with_shared_expert(random_inputs(tokens, 32, 16, 6, at::kFloat), 20, gated), 1e-5);
    }
    testing::expect_gradients(fused(spec),
                              with_shared_expert(random_inputs(7, 6, 4, 6, at::kDouble), 5, gated));
  }
  const Tensors in = with_shared_expert(random_inputs(40, 96, 32, 6, at::kBFloat16), 40, true);
  MoeOptions options;
  options.replay_indices = moe_half(in[0], weights_of(in), spec, kEps).expert_indices;
  testing::expect_matches_reference(fused(spec, options), reference(spec, options), in, 4e-2);
}

TEST(MoeHalf, WithACorrectionBiasGroupsAndARouterInFp32) {
  RouterSpec spec{6, 2, ScoreFunction::kSigmoid, true, 1.5};
  spec.correction_bias = true;
  spec.num_groups = 3;
  spec.top_groups = 2;
  const auto biased = [&](auto* half, const at::Tensor& bias) -> testing::Function {
    return [=](const Tensors& in) {
      MoeWeights weights = weights_of(in);
      weights.correction_bias = bias;
      return outputs_of(half(in[0], weights, spec, kEps, MoeOptions{}));
    };
  };
  const auto expect_match = [&](const Tensors& in, double tolerance) {
    const at::Tensor bias = random_tensor({6}).mul(0.3);
    testing::expect_matches_reference(biased(moe_half, bias), biased(moe_half_reference, bias), in,
                                      tolerance);
  };
  expect_match(random_inputs(30, 32, 16, 6, at::kFloat), 1e-5);
  const at::Tensor bias = random_tensor({6}, at::kDouble).mul(0.3);
  testing::expect_gradients(biased(moe_half, bias), random_inputs(7, 6, 4, 6, at::kDouble));
  Tensors mixed = random_inputs(40, 96, 32, 6, at::kBFloat16);
  mixed[2] = mixed[2].to(at::kFloat);
  expect_match(mixed, 4e-2);
}

TEST(MoeHalf, OneToken) {
  const RouterSpec spec{4, 2, ScoreFunction::kSoftmax, true};
  testing::expect_matches_reference(fused(spec), reference(spec), random_inputs(1, 16, 8, 4, at::kFloat),
                                    1e-5);
}

TEST(MoeHalf, OneExpertTakesEveryTokenAndOthersNone) {
  const RouterSpec spec{4, 1};
  const Tensors in = one_expert_takes_all(random_inputs(30, 16, 8, 4, at::kFloat));
  EXPECT_TRUE(
      moe_half(in[0], weights_of(in), spec, kEps).expert_counts.equal(at::tensor({30, 0, 0, 0}, at::kLong)));
  testing::expect_matches_reference(fused(spec), reference(spec), in, 1e-5);
}

TEST(MoeHalf, TiesGoToTheLowerExpert) {
  Tensors in = random_inputs(6, 16, 8, 4, at::kFloat);
  in[2].zero_();
  const RouterSpec spec{4, 2, ScoreFunction::kSoftmax, true};
  EXPECT_TRUE(
      moe_half(in[0], weights_of(in), spec, kEps).expert_counts.equal(at::tensor({6, 6, 0, 0}, at::kLong)));
  testing::expect_matches_reference(fused(spec), reference(spec), in, 1e-5);
}

TEST(MoeHalf, EveryImplementationAgrees) {
  const RouterSpec spec{6, 2, ScoreFunction::kSoftmax, true};
  const Tensors in = random_inputs(70, 32, 16, 6, at::kFloat);
  for (const auto implementation : {ExpertsImplementation::kEager, ExpertsImplementation::kBatchedMm,
                                    ExpertsImplementation::kGroupedMm}) {
    testing::expect_matches_reference(fused(spec, {implementation, false, {}}), reference(spec), in, 1e-5);
  }
}

TEST(MoeHalf, RouterLogitsAreAnOutputWithAGradient) {
  const RouterSpec spec{5, 2, ScoreFunction::kSoftmax, true};
  const MoeOptions options{ExpertsImplementation::kAuto, true, {}};
  testing::expect_matches_reference(fused(spec, options), reference(spec, options),
                                    random_inputs(12, 16, 8, 5, at::kFloat), 1e-5);
  testing::expect_gradients(fused(spec, options), random_inputs(5, 6, 4, 5, at::kDouble));
  EXPECT_FALSE(
      moe_half(random_tensor({3, 16}), weights_of(random_inputs(3, 16, 8, 5, at::kFloat)), spec, kEps)
          .router_logits.defined());
}

TEST(MoeHalf, OnlyTheRouterLogitsAreUsed) {
  const RouterSpec spec{5, 2};
  const MoeOptions options{ExpertsImplementation::kAuto, true, {}};
  const auto only_logits = [](const testing::Function& function) -> testing::Function {
    return [function](const Tensors& in) -> Tensors { return {function(in).back()}; };
  };
  Tensors in = random_inputs(12, 16, 8, 5, at::kFloat);
  in[3] = in[3].to(at::kFloat).detach();
  const auto result = moe_half(in[0].clone().requires_grad_(), weights_of(in), spec, kEps, options);
  EXPECT_TRUE(result.router_logits.requires_grad());
  for (const std::size_t i : {0, 1, 2}) {
    Tensors a = in, b = in;
    a[i] = in[i].clone().requires_grad_();
    b[i] = in[i].clone().requires_grad_();
    only_logits(fused(spec, options))(a)[0].square().sum().backward();
    only_logits(reference(spec, options))(b)[0].square().sum().backward();
    EXPECT_LE(testing::relative_error(a[i].grad(), b[i].grad()), 1e-5) << i;
  }
}

TEST(MoeHalf, MatchesReferenceInBfloat16) {
  // The choice of experts is replayed, because a rounded logit can tip it.
  const RouterSpec spec{6, 2, ScoreFunction::kSoftmax, true};
  const Tensors in = random_inputs(40, 96, 32, 6, at::kBFloat16);
  MoeOptions options;
  options.replay_indices = moe_half(in[0], weights_of(in), spec, kEps).expert_indices;
  testing::expect_matches_reference(fused(spec, options), reference(spec, options), in, 4e-2);
}

TEST(MoeHalf, GradientsInDoublePrecision) {
  for (const bool normalize : {false, true}) {
    for (const auto score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid}) {
      testing::expect_gradients(fused({4, 2, score, normalize}), random_inputs(7, 6, 4, 4, at::kDouble));
    }
  }
}

TEST(MoeHalf, ReplayForcesTheChoice) {
  const RouterSpec spec{5, 2, ScoreFunction::kSoftmax, true};
  MoeOptions options;
  options.replay_indices = at::tensor({4, 1}, at::kInt).expand({9, 2}).contiguous();
  const Tensors in = random_inputs(9, 16, 8, 5, at::kFloat);
  testing::expect_matches_reference(fused(spec, options), reference(spec, options), in, 1e-5);
  EXPECT_TRUE(
      moe_half(in[0], weights_of(in), spec, kEps, options).expert_indices.equal(options.replay_indices));
}

TEST(MoeHalf, FrozenWeightsGetNoGradientAndChangeNoOther) {
  const RouterSpec spec{4, 2, ScoreFunction::kSoftmax, true};
  const Tensors in = with_shared_expert(random_inputs(20, 8, 4, 4, at::kDouble), 5, true);
  const at::Tensor upstream = random_tensor({20, 8}, at::kDouble);
  const auto gradients = [&](unsigned chosen) {
    Tensors leaves, grads;
    for (std::size_t i = 0; i < in.size(); ++i) {
      leaves.push_back(in[i].detach().clone().set_requires_grad((chosen >> i & 1) != 0));
    }
    moe_half(leaves[0], weights_of(leaves), spec, kEps).out.backward(upstream);
    for (const at::Tensor& leaf : leaves) {
      grads.push_back(leaf.grad());
    }
    return grads;
  };
  const Tensors all = gradients(0b111111111);
  for (unsigned chosen = 1; chosen < 0b111111111; ++chosen) {
    const Tensors some = gradients(chosen);
    for (std::size_t i = 0; i < some.size(); ++i) {
      ASSERT_EQ(some[i].defined(), (chosen >> i & 1) != 0) << chosen;
      if (some[i].defined()) {
        EXPECT_LE(testing::relative_error(some[i], all[i]), 1e-12) << chosen << " " << i;
      }
    }
  }
}

TEST(MoeHalf, DoesNotDependOnTheNumberOfThreads) {
  const RouterSpec spec{5, 2, ScoreFunction::kSoftmax, true};
  const Tensors in = with_shared_expert(random_inputs(1100, 64, 32, 5, at::kFloat), 48, true);
  const at::Tensor upstream = random_tensor({1100, 64});
  testing::expect_same_on_any_threads([&] {
    Tensors leaves, results;
    for (const at::Tensor& input : in) {
      leaves.push_back(input.detach().clone().requires_grad_());
    }
    const MoeResult result = moe_half(leaves[0], weights_of(leaves), spec, kEps);
    result.out.backward(upstream);
    results = {result.out.detach(), result.expert_indices};
    for (const at::Tensor& leaf : leaves) {
      results.push_back(leaf.grad());
    }
    return results;
  });
}

TEST(MoeHalf, RefusesWhatDoesNotFit) {
  const RouterSpec spec{4, 2};
  const auto refused = [&](std::size_t input, const at::Tensor& wrong) {
    Tensors in = random_inputs(5, 8, 4, 4, at::kFloat);
    in[input] = wrong;
    EXPECT_THROW(fused(spec)(in), Error) << "input " << input;
  };
  refused(0, random_tensor({5, 9}));
  refused(0, random_tensor({2, 5, 8}));
  refused(1, random_tensor({8}, at::kBFloat16));
  refused(2, random_tensor({3, 8}));
  refused(3, random_tensor({4, 6, 8}));
  refused(4, random_tensor({4, 8, 5}));
  Tensors in = with_shared_expert(random_inputs(5, 8, 4, 4, at::kFloat), 3, false);
  in[6] = random_tensor({2, 8});
  EXPECT_THROW(fused(spec)(in), Error);
  const MoeOptions grouped{ExpertsImplementation::kGroupedMm, false, {}};
  EXPECT_THROW(fused(spec, grouped)(random_inputs(5, 8, 4, 4, at::kDouble)), Error);
}

}  // namespace
}  // namespace phalanx
