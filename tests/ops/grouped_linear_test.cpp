#include "ops/grouped_linear.h"

#include "core/error.h"
#include "ops/check.h"
#include "ops/threads.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <gtest/gtest.h>

#include <vector>

namespace phalanx {
namespace {

using testing::random_tensor;
using testing::relative_error;
using enum ExpertsImplementation;

at::Tensor ends_of(const std::vector<int>& counts) {
  std::vector<int> ends;
  int end = 0;
  for (const int count : counts) {
    ends.push_back(end += count);
  }
  return at::tensor(ends, at::kInt);
}

at::Tensor weight_grad_reference(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& ends) {
  std::vector<at::Tensor> grads;
  std::int64_t begin = 0;
  for (std::int64_t expert = 0; expert < ends.numel(); ++expert) {
    const std::int64_t end = ends[expert].item<std::int32_t>();
    grads.push_back(grad_y.slice(0, begin, end).t().matmul(x.slice(0, begin, end)));
    begin = end;
  }
  return at::stack(grads);
}

// All rows at one expert, none at the first and last, more than one tile, a single row.
const std::vector<std::vector<int>> kCounts = {{0, 7, 0}, {300, 1, 12}, {5, 0, 260, 3}, {0, 1}, {1}};

void expect_equal_to_reference(ExpertsImplementation implementation, at::ScalarType dtype, std::int64_t in,
                               std::int64_t out, double tolerance) {
  for (const auto& counts : kCounts) {
    const at::Tensor ends = ends_of(counts);
    const std::int64_t rows = ends[-1].item<std::int32_t>(), experts = ends.numel();
    const auto x = random_tensor({rows, in}, dtype), grad_y = random_tensor({rows, out}, dtype),
               weight = random_tensor({experts, out, in}, dtype);
    EXPECT_LE(relative_error(grouped_linear(x, weight, ends, implementation),
                             grouped_linear_reference(x, weight, ends)),
              tolerance);
    const auto transposed = weight.transpose(1, 2);
    EXPECT_LE(relative_error(grouped_linear(grad_y, transposed, ends, implementation),
                             grouped_linear_reference(grad_y, transposed, ends)),
              tolerance);
    EXPECT_LE(relative_error(grouped_linear_weight_grad(grad_y, x, ends, implementation),
                             weight_grad_reference(grad_y, x, ends)),
              tolerance);
  }
}

TEST(GroupedLinear, EveryImplementationMatchesTheReference) {
  for (const auto implementation : {kEager, kBatchedMm, kGroupedMm}) {
    SCOPED_TRACE(experts_implementation_name(implementation));
    expect_equal_to_reference(implementation, at::kFloat, 96, 64, 1e-5);
    expect_equal_to_reference(implementation, at::kFloat, 20, 300, 1e-5);
    expect_equal_to_reference(implementation, at::kBFloat16, 96, 64, 2e-2);
  }
}

TEST(GroupedLinear, OddWidthsAndDoublePrecision) {
  for (const auto implementation : {kEager, kBatchedMm}) {
    SCOPED_TRACE(experts_implementation_name(implementation));
    expect_equal_to_reference(implementation, at::kFloat, 7, 3, 1e-5);
    expect_equal_to_reference(implementation, at::kDouble, 9, 130, 1e-13);
  }
}

TEST(GroupedLinear, EagerDoesNotDependOnTheNumberOfThreads) {
  const at::Tensor ends = ends_of({700, 0, 13, 290});
  const auto x = random_tensor({1003, 96}), grad_y = random_tensor({1003, 160}),
             weight = random_tensor({4, 160, 96});
  testing::expect_same_on_any_threads([&]() -> Tensors {
    return {grouped_linear(x, weight, ends, kEager),
            grouped_linear(grad_y, weight.transpose(1, 2), ends, kEager),
            grouped_linear_weight_grad(grad_y, x, ends, kEager)};
  });
}

TEST(GroupedLinear, AutoTakesEverythingAndAnExplicitChoiceIsKeptOrRefusedByName) {
  const auto aligned = random_tensor({2, 32, 64}), odd = random_tensor({2, 32, 66}),
             narrow = random_tensor({2, 12, 64}), wide = random_tensor({2, 32, 64}, at::kDouble);
  for (const auto& gate_up : {aligned, odd, narrow, wide}) {
    EXPECT_EQ(choose_experts_implementation(kAuto, gate_up), kEager);
    EXPECT_EQ(choose_experts_implementation(kBatchedMm, gate_up), kBatchedMm);
  }
  EXPECT_EQ(choose_experts_implementation(kGroupedMm, aligned), kGroupedMm);
  for (const auto& gate_up : {odd, narrow, wide}) {
    try {
      choose_experts_implementation(kGroupedMm, gate_up);
      ADD_FAILURE() << "grouped_mm was accepted for " << gate_up.sizes() << " " << gate_up.scalar_type();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("Use eager, batched_mm or auto"), std::string::npos)
          << error.what();
    }
  }
}

// The choice depends on what it is told alone: no GPU is needed to see what one would get.
TEST(ExpertsChoice, FollowsDeviceDtypeAndWidths) {
  using enum ExpertsImplementation;
  const ExpertsSituation hopper{false, true, at::kBFloat16, 128, 2048, 768};
  const auto automatic = [](ExpertsSituation situation) {
    return choose_experts_implementation(kAuto, situation).implementation;
  };
  EXPECT_EQ(automatic({}), kEager);
  EXPECT_EQ(automatic(hopper), kPhalanx);
  ExpertsSituation other = hopper;
  other.own_kernels = false;
  EXPECT_EQ(automatic(other), kGroupedMm);
  other = hopper;
  other.dtype = at::kFloat;
  EXPECT_EQ(automatic(other), kGroupedMm);
  other = hopper;
  other.width = 40;  // not a multiple of 64: possible, but not by default
  EXPECT_EQ(automatic(other), kGroupedMm);
  EXPECT_EQ(choose_experts_implementation(kPhalanx, other).implementation, kPhalanx);
  other.width = 30;
  EXPECT_EQ(automatic(other), kEager);
  EXPECT_NE(choose_experts_implementation(kAuto, other).reason.find("multiple"), std::string::npos);
}

TEST(ExpertsChoice, RefusesWhatCannotBeHad) {
  using enum ExpertsImplementation;
  ExpertsSituation situation{false, true, at::kFloat, 128, 2048, 768};
  EXPECT_THROW(choose_experts_implementation(kPhalanx, situation), Error);
  situation = {true, false, at::kBFloat16, 128, 2048, 768};
  EXPECT_THROW(choose_experts_implementation(kPhalanx, situation), Error);
  situation = {false, true, at::kBFloat16, 128, 2048, 30};
  EXPECT_THROW(choose_experts_implementation(kPhalanx, situation), Error);
  EXPECT_THROW(choose_experts_implementation(kGroupedMm, situation), Error);
}

}  // namespace
}  // namespace phalanx
