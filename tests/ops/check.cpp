#include "ops/check.h"

#include "ops/aten_compat.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace phalanx::testing {
namespace {

// Each test draws the same numbers whatever runs before it.
class SeedEachTest final : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { at::manual_seed(1); }
};

[[maybe_unused]] const bool kPrepared = [] {
  aten::make_products_reproducible();  // as the trainer does
  ::testing::UnitTest::GetInstance()->listeners().Append(new SeedEachTest);
  return true;
}();

Tensors make_leaves(const Tensors& inputs) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) {
    const bool differentiable = input.defined() && input.is_floating_point();
    leaves.push_back(differentiable ? input.detach().clone().requires_grad_() : input);
  }
  return leaves;
}

at::Tensor weighted_sum(const Tensors& outputs, const Tensors& weights) {
  at::Tensor total;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad()) {
      continue;
    }
    const at::Tensor term = (outputs[i] * weights[i]).sum();
    total = total.defined() ? total + term : term;
  }
  return total;
}

Tensors gradients(const Tensors& outputs, const Tensors& weights, const Tensors& leaves) {
  Tensors wanted;
  for (const at::Tensor& leaf : leaves) {
    if (leaf.defined() && leaf.requires_grad()) {
      wanted.push_back(leaf);
    }
  }
  return torch::autograd::grad({weighted_sum(outputs, weights)}, wanted, {}, std::nullopt, false,
                               /*allow_unused=*/true);
}

}  // namespace

at::Tensor random_tensor(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return std::numeric_limits<double>::infinity();
  }
  if (a.numel() == 0) {
    return 0.0;
  }
  const double difference = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
  const double size = b.to(at::kDouble).abs().max().item<double>();
  return difference == 0.0 ? 0.0 : difference / size;
}

void expect_matches_reference(const Function& op, const Function& reference, const Tensors& inputs,
                              double tolerance) {
  const Tensors op_leaves = make_leaves(inputs);
  const Tensors reference_leaves = make_leaves(inputs);
  const Tensors outputs = op(op_leaves);
  const Tensors expected = reference(reference_leaves);
  ASSERT_EQ(outputs.size(), expected.size());
  Tensors weights;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_LE(relative_error(outputs[i], expected[i]), tolerance) << "output " << i;
    weights.push_back(expected[i].is_floating_point()
                          ? random_tensor(expected[i].sizes(), expected[i].scalar_type())
                          : at::Tensor());
  }
  const Tensors grads = gradients(outputs, weights, op_leaves);
  const Tensors expected_grads = gradients(expected, weights, reference_leaves);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    ASSERT_EQ(grads[i].defined(), expected_grads[i].defined()) << "gradient " << i;
    if (grads[i].defined()) {
      EXPECT_LE(relative_error(grads[i], expected_grads[i]), tolerance) << "gradient " << i;
    }
  }
}

void expect_gradients(const Function& op, const Tensors& inputs, double tolerance) {
  const Tensors leaves = make_leaves(inputs);
  const Tensors outputs = op(leaves);
  Tensors weights;
  for (const at::Tensor& output : outputs) {
    weights.push_back(output.is_floating_point() ? random_tensor(output.sizes(), at::kDouble) : at::Tensor());
  }
  const Tensors grads = gradients(outputs, weights, leaves);
  std::size_t next = 0;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].defined() || !leaves[i].requires_grad()) {
      continue;
    }
    const at::Tensor direction = random_tensor(leaves[i].sizes(), at::kDouble);
    constexpr double kStep = 1e-5;
    const auto value_at = [&](double step) {
      Tensors moved = leaves;
      moved[i] = (leaves[i].detach() + direction * step).requires_grad_();
      return weighted_sum(op(moved), weights).item<double>();
    };
    const double numeric = (value_at(kStep) - value_at(-kStep)) / (2 * kStep);
    const double analytic = grads[next].defined() ? (grads[next] * direction).sum().item<double>() : 0.0;
    ++next;
    EXPECT_NEAR(analytic, numeric, tolerance * std::max(1.0, std::abs(numeric))) << "input " << i;
  }
}

}  // namespace phalanx::testing
