#include "ops/projection_norm.h"

#include "core/error.h"
#include "ops/check.h"
#include "ops/threads.h"

#include <ATen/ops/tensor.h>

#include <gtest/gtest.h>

namespace phalanx {
namespace {

using testing::random_tensor;
using Clip = std::optional<double>;

constexpr std::int64_t kQ = 12, kK = 6, kV = 6;

// qkv, and the norm weights unless `norm` is false.
Tensors random_inputs(std::int64_t tokens, bool norm, at::ScalarType dtype = at::kFloat) {
  Tensors in = {random_tensor({tokens, kQ + kK + kV}, dtype)};
  if (norm) {
    in.push_back(random_tensor({kQ}, dtype));
    in.push_back(random_tensor({kK}, dtype));
  }
  return in;
}

ProjectionNormInputs arguments(const Tensors& in, Clip clip) {
  return {in[0], in.size() > 1 ? in[1] : at::Tensor(), in.size() > 1 ? in[2] : at::Tensor(), kQ, kK, 1e-5,
          clip};
}

testing::Function fused(Clip clip) {
  return [clip](const Tensors& in) { return Tensors{projection_norm(arguments(in, clip))}; };
}
testing::Function reference(Clip clip) {
  return [clip](const Tensors& in) { return Tensors{projection_norm_reference(arguments(in, clip))}; };
}

TEST(ProjectionNorm, MatchesReference) {
  for (const std::int64_t tokens : {1, 3, 130}) {
    for (const bool norm : {true, false}) {
      for (const Clip clip : {Clip(), Clip(0.7)}) {
        testing::expect_matches_reference(fused(clip), reference(clip), random_inputs(tokens, norm), 5e-6);
      }
    }
  }
}

TEST(ProjectionNorm, MatchesReferenceInBfloat16) {
  testing::expect_matches_reference(fused(0.7), reference(0.7), random_inputs(9, true, at::kBFloat16), 2e-2);
}

TEST(ProjectionNorm, GradientsInDoublePrecision) {
  for (const bool norm : {true, false}) {
    testing::expect_gradients(fused(0.7), random_inputs(5, norm, at::kDouble));
    testing::expect_gradients(fused({}), random_inputs(5, norm, at::kDouble));
  }
}

TEST(ProjectionNorm, ValuesAreCutOffAtTheClipAndAValueOnTheEdgeKeepsItsGradient) {
  const at::Tensor qkv = at::tensor({-3.0, -2.0, 1.0, 2.5}).view({1, 4}).requires_grad_();
  ProjectionNormInputs in{qkv, {}, {}, 2, 1, 1e-5, 2.0};
  const at::Tensor out = projection_norm(in);
  out.sum().backward();
  EXPECT_TRUE(out.detach().equal(at::tensor({-2.0, -2.0, 1.0, 2.0}).view({1, 4})));
  EXPECT_TRUE(qkv.grad().equal(at::tensor({0.0, 1.0, 1.0, 0.0}).view({1, 4})));
}

TEST(ProjectionNorm, DoesNotDependOnTheNumberOfThreads) {
  const Tensors in = random_inputs(1000, true);
  const at::Tensor upstream = random_tensor({1000, kQ + kK + kV});
  testing::expect_same_on_any_threads([&] {
    const ProjectionNormGrads grads = projection_norm_backward(upstream, arguments(in, 0.7));
    return Tensors{projection_norm_forward(arguments(in, 0.7)), grads.qkv, grads.q_norm, grads.k_norm};
  });
}

TEST(ProjectionNorm, RefusesWhatDoesNotFit) {
  ProjectionNormInputs in = arguments(random_inputs(2, true), {});
  in.k_norm = at::Tensor();
  EXPECT_THROW(projection_norm(in), Error);
  in.k_norm = random_tensor({kK + 1});
  EXPECT_THROW(projection_norm(in), Error);
  in = arguments(random_inputs(2, false), {});
  in.q_width = 20;
  EXPECT_THROW(projection_norm(in), Error);
}

}  // namespace
}  // namespace phalanx
