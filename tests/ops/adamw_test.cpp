#include "ops/adamw.h"

#include "core/error.h"
#include "core/moment_code.h"
#include "ops/check.h"
#include "ops/cpu/moments.h"
#include "ops/threads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

#include <cmath>

namespace phalanx {
namespace {

using testing::random_tensor;
using testing::relative_error;

AdamWStep step_number(std::int64_t step) {
  return {.learning_rate = 3e-3,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-8,
          .step = step,
          .gradient_scale = 0.37,
          .stochastic_rounding = false,
          .seed = 11};
}

// Sizes around one vector, one block of random numbers and one task.
AdamWTensors random_parameters(at::ScalarType dtype, bool with_master) {
  AdamWTensors tensors;
  for (const auto size : {1, 7, 33, 8192, 20011}) {
    const at::ScalarType state = dtype == at::kDouble ? at::kDouble : at::kFloat;
    tensors.parameters.push_back(random_tensor({size}, dtype));
    tensors.gradients.push_back(random_tensor({size}, dtype));
    tensors.exp_avg.push_back(at::zeros({size}, state));
    tensors.exp_avg_sq.push_back(at::zeros({size}, state));
    tensors.weight_decay.push_back(size % 2 == 0 ? 0.1 : 0.0);
    tensors.positions.push_back(static_cast<std::int64_t>(tensors.positions.size()));
    if (with_master) {
      tensors.master.push_back(tensors.parameters.back().to(at::kFloat));
    }
  }
  return tensors;
}

AdamWTensors copy_of(const AdamWTensors& tensors) {
  const auto copy = [](const Tensors& list) {
    Tensors copies;
    for (const at::Tensor& tensor : list) {
      copies.push_back(tensor.clone());
    }
    return copies;
  };
  return {copy(tensors.parameters), copy(tensors.gradients),     copy(tensors.exp_avg),
          copy(tensors.exp_avg_sq), copy(tensors.exp_avg_scale), copy(tensors.exp_avg_sq_scale),
          copy(tensors.master),     tensors.weight_decay,        tensors.positions};
}

void set_random_gradients(AdamWTensors& a, AdamWTensors& b) {
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    a.gradients[i].copy_(random_tensor(a.gradients[i].sizes(), at::kDouble));
    b.gradients[i].copy_(a.gradients[i]);
  }
}

void expect_same(const AdamWTensors& a, const AdamWTensors& b) {
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    EXPECT_TRUE(a.exp_avg[i].equal(b.exp_avg[i])) << i;
    EXPECT_TRUE(a.exp_avg_sq[i].equal(b.exp_avg_sq[i])) << i;
    const Tensors& value = a.master.empty() ? a.parameters : a.master;
    const Tensors& expected = a.master.empty() ? b.parameters : b.master;
    EXPECT_LE(relative_error(value[i], expected[i]), 1e-7) << i;
    if (!a.master.empty()) {
      EXPECT_TRUE(a.parameters[i].equal(a.master[i].to(at::kBFloat16))) << i;
    }
  }
}

TEST(AdamW, EqualsTheUnfusedUpdate) {
  for (const bool with_master : {false, true}) {
    AdamWTensors fused = random_parameters(with_master ? at::kBFloat16 : at::kFloat, with_master);
    AdamWTensors reference = copy_of(fused);
    for (std::int64_t step = 1; step <= 4; ++step) {
      set_random_gradients(fused, reference);
      adamw_(fused, step_number(step));
      adamw_reference_(reference, step_number(step));
    }
    expect_same(fused, reference);
  }
}

TEST(AdamW, DoublePrecision) {
  AdamWTensors fused = random_parameters(at::kDouble, false);
  AdamWTensors reference = copy_of(fused);
  adamw_(fused, step_number(1));
  adamw_reference_(reference, step_number(1));
  for (std::size_t i = 0; i < fused.parameters.size(); ++i) {
    EXPECT_LE(relative_error(fused.parameters[i], reference.parameters[i]), 1e-14);
  }
}

TEST(AdamW, SingleGradientsBesideBfloat16Parameters) {
  AdamWTensors fused = random_parameters(at::kBFloat16, true);
  for (at::Tensor& gradient : fused.gradients) {
    gradient = gradient.to(at::kFloat).mul(1.001);  // not a bf16 value any more
  }
  AdamWTensors reference = copy_of(fused);
  adamw_(fused, step_number(1));
  adamw_reference_(reference, step_number(1));
  expect_same(fused, reference);
}

TEST(AdamW, MarksParametersAsChanged) {
  AdamWTensors tensors = random_parameters(at::kFloat, false);
  tensors.parameters[0].requires_grad_();
  const auto before = tensors.parameters[0]._version();
  adamw_(tensors, step_number(1));
  EXPECT_GT(tensors.parameters[0]._version(), before);
}

AdamWStep stochastic(std::int64_t step, std::uint64_t seed) {
  AdamWStep result = step_number(step);
  result.stochastic_rounding = true;
  result.seed = seed;
  return result;
}

TEST(AdamW, StochasticRoundingIsUnbiased) {
  // One update of about 3e-3 on 1.0, where bf16 steps by 2^-7: rounding to nearest would lose it everywhere.
  constexpr std::int64_t kCount = 1 << 20;
  AdamWTensors tensors{{at::full({kCount}, 1.0, at::TensorOptions().dtype(at::kBFloat16))},
                       {at::full({kCount}, -1.0, at::TensorOptions().dtype(at::kBFloat16))},
                       {at::zeros({kCount})},
                       {at::zeros({kCount})},
                       {},
                       {},
                       {},
                       {0.0},
                       {0}};
  adamw_(tensors, stochastic(1, 5));
  const at::Tensor result = tensors.parameters[0].to(at::kDouble);
  const double up = 1.0 + std::ldexp(1.0, -7);
  EXPECT_TRUE(result.eq(1.0).logical_or(result.eq(up)).all().item<bool>());
  // The share that went up is binomial: 0.384 +- 5 standard deviations of 4.7e-4.
  EXPECT_NEAR(result.eq(up).to(at::kDouble).mean().item<double>(), 3e-3 * 128, 2.4e-3);
}

TEST(AdamW, StochasticRoundingKeepsValuesThatFit) {
  AdamWTensors tensors = random_parameters(at::kBFloat16, false);
  const AdamWTensors before = copy_of(tensors);
  AdamWStep step = stochastic(1, 5);
  step.learning_rate = 0.0;
  adamw_(tensors, step);
  for (std::size_t i = 0; i < tensors.parameters.size(); ++i) {
    EXPECT_TRUE(tensors.parameters[i].equal(before.parameters[i]));
  }
}

TEST(AdamW, StochasticRoundingDependsOnSeedStepAndParameterOnly) {
  const AdamWTensors start = random_parameters(at::kBFloat16, false);
  const auto run = [&](std::int64_t step, std::uint64_t seed) {
    AdamWTensors tensors = copy_of(start);
    adamw_(tensors, stochastic(step, seed));
    return tensors.parameters;
  };
  const Tensors first = run(3, 5), again = run(3, 5), other_seed = run(3, 6);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(first[i].equal(again[i]));
  }
  EXPECT_FALSE(first.back().equal(other_seed.back()));
  // Two parameters with the same content do not round alike, nor one parameter in two steps.
  AdamWTensors twins{{at::full({4096}, 1.0, at::TensorOptions().dtype(at::kBFloat16)),
                      at::full({4096}, 1.0, at::TensorOptions().dtype(at::kBFloat16))},
                     {at::full({4096}, -1.0), at::full({4096}, -1.0)},
                     {at::zeros({4096}), at::zeros({4096})},
                     {at::zeros({4096}), at::zeros({4096})},
                     {},
                     {},
                     {},
                     {0.0, 0.0},
                     {0, 1}};
  const AdamWTensors twins_later = copy_of(twins);
  adamw_(twins, stochastic(1, 5));
  EXPECT_FALSE(twins.parameters[0].equal(twins.parameters[1]));
  AdamWStep later = stochastic(2, 5);
  adamw_(twins_later, later);
  EXPECT_FALSE(twins.parameters[0].ne(1.0).equal(twins_later.parameters[0].ne(1.0)));
}

AdamWTensors with_moments(AdamWTensors tensors, at::ScalarType type) {
  for (std::size_t i = 0; i < tensors.parameters.size(); ++i) {
    tensors.exp_avg[i] = at::zeros(tensors.parameters[i].sizes(), type);
    tensors.exp_avg_sq[i] = at::zeros(tensors.parameters[i].sizes(), type);
    if (type == at::kByte) {
      tensors.exp_avg_scale.push_back(at::zeros({moment_blocks(tensors.parameters[i].numel())}, type));
      tensors.exp_avg_sq_scale.push_back(at::zeros({moment_blocks(tensors.parameters[i].numel())}, type));
    }
  }
  return tensors;
}

// The moment that the codes of one parameter stand for.
template <class Code>
at::Tensor value_of(const at::Tensor& codes, const at::Tensor& scales) {
  at::Tensor result = at::empty(codes.sizes(), at::kFloat);
  cpu::read_codes<Code>(codes.const_data_ptr<std::uint8_t>(), scales.const_data_ptr<std::uint8_t>(),
                        result.mutable_data_ptr<float>(), codes.numel());
  return result;
}

TEST(AdamW, NarrowMomentsStayNearWideOnes) {
  for (const auto type : {at::kBFloat16, at::kByte}) {
    AdamWTensors wide = random_parameters(at::kFloat, false);
    AdamWTensors narrow = with_moments(copy_of(wide), type);
    set_random_gradients(wide, narrow);
    adamw_(wide, step_number(1));
    adamw_(narrow, step_number(1));
    for (std::size_t i = 0; i < wide.parameters.size(); ++i) {
      // The update of a step computes with moments that it has not rounded yet.
      EXPECT_TRUE(narrow.parameters[i].equal(wide.parameters[i]));
      const bool codes = type == at::kByte;
      const at::Tensor mean = codes ? value_of<FirstMomentCode>(narrow.exp_avg[i], narrow.exp_avg_scale[i])
                                    : narrow.exp_avg[i].to(at::kFloat);
      const at::Tensor square =
          codes ? value_of<SecondMomentCode>(narrow.exp_avg_sq[i], narrow.exp_avg_sq_scale[i])
                : narrow.exp_avg_sq[i].to(at::kFloat);
      const double spacing = codes ? 0.125 : 1.0 / 128;  // of neighbouring values, relative, at most
      const double least = codes ? wide.exp_avg[i].abs().max().item<double>() * std::ldexp(1.25, -16) : 0.0;
      EXPECT_TRUE(
          ((mean - wide.exp_avg[i]).abs() <= wide.exp_avg[i].abs() * spacing + least).all().item<bool>());
      EXPECT_TRUE(
          ((square - wide.exp_avg_sq[i]).abs() <= wide.exp_avg_sq[i] * spacing + 1e-12).all().item<bool>());
    }
  }
}

TEST(AdamW, NarrowMomentsAreUnbiased) {
  // Rounded to nearest, an average that moves by a thousandth of itself in a step would never leave its code.
  constexpr std::int64_t kCount = 1 << 14;
  for (const auto type : {at::kBFloat16, at::kByte}) {
    AdamWTensors tensors = with_moments({{at::zeros({kCount})},
                                         {at::full({kCount}, 1.0)},
                                         {at::zeros({kCount})},
                                         {at::zeros({kCount})},
                                         {},
                                         {},
                                         {},
                                         {0.0},
                                         {0}},
                                        type);
    AdamWStep step = step_number(1);
    step.beta2 = 0.999;
    step.gradient_scale = 1.0;
    double mean = 0, square = 0;
    for (step.step = 1; step.step <= 200; ++step.step) {
      const double gradient = step.step <= 100 ? 3.0 : 1.0;
      tensors.gradients[0].fill_(gradient);
      adamw_(tensors, step);
      mean += 0.1 * (gradient - mean);
      square += 0.001 * (gradient * gradient - square);
    }
    const bool codes = type == at::kByte;
    const at::Tensor found_mean =
        codes ? value_of<FirstMomentCode>(tensors.exp_avg[0], tensors.exp_avg_scale[0])
              : tensors.exp_avg[0].to(at::kFloat);
    const at::Tensor found_square =
        codes ? value_of<SecondMomentCode>(tensors.exp_avg_sq[0], tensors.exp_avg_sq_scale[0])
              : tensors.exp_avg_sq[0].to(at::kFloat);
    EXPECT_NEAR(found_mean.to(at::kDouble).mean().item<double>(), mean, 5e-3 * mean);
    EXPECT_NEAR(found_square.to(at::kDouble).mean().item<double>(), square, 5e-3 * square);
  }
}

TEST(AdamW, HowParametersAreSpreadOverCallsDoesNotShow) {
  const AdamWTensors start = with_moments(random_parameters(at::kBFloat16, false), at::kByte);
  AdamWTensors whole = copy_of(start);
  adamw_(whole, stochastic(1, 5));
  for (std::size_t i = 0; i < start.parameters.size(); ++i) {
    const AdamWTensors all = copy_of(start);
    AdamWTensors one{{all.parameters[i]},
                     {all.gradients[i]},
                     {all.exp_avg[i]},
                     {all.exp_avg_sq[i]},
                     {all.exp_avg_scale[i]},
                     {all.exp_avg_sq_scale[i]},
                     {},
                     {all.weight_decay[i]},
                     {all.positions[i]}};
    adamw_(one, stochastic(1, 5));
    EXPECT_TRUE(one.parameters[0].equal(whole.parameters[i]));
    EXPECT_TRUE(one.exp_avg[0].equal(whole.exp_avg[i]));
    EXPECT_TRUE(one.exp_avg_sq[0].equal(whole.exp_avg_sq[i]));
  }
}

TEST(MomentCode, HoldsItsOwnValuesAndOrdinaryCases) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const std::uint32_t bits = SecondMomentCode::value_bits(code);
    for (const std::uint32_t random : {0u, 1u, 0xffffu}) {
      EXPECT_EQ(SecondMomentCode::round(std::bit_cast<float>(bits), bits, random, static_cast<float>(random)),
                code);
    }
  }
  EXPECT_EQ(std::bit_cast<float>(SecondMomentCode::value_bits(255)), 1.0f);
  EXPECT_EQ(std::bit_cast<float>(SecondMomentCode::value_bits(1)), SecondMomentCode::least());
  EXPECT_EQ(std::bit_cast<float>(FirstMomentCode::value_bits(127)), 1.0f);
  // A block of zeros, of subnormal numbers, one with NaN.
  std::vector<float> values(3 * kMomentBlock, 0.0f), back(values.size());
  values[kMomentBlock + 5] = 1e-42f;
  values[2 * kMomentBlock] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::uint8_t> codes(values.size()), scales(3);
  const auto count = static_cast<std::int64_t>(values.size());
  cpu::write_codes<FirstMomentCode>(values.data(), codes.data(), scales.data(), count, {1, 2, 0});
  cpu::read_codes<FirstMomentCode>(codes.data(), scales.data(), back.data(), count);
  EXPECT_EQ(back[0], 0.0f);
  EXPECT_NEAR(back[kMomentBlock + 5], 1e-42f, 1.3e-43f);
  EXPECT_TRUE(std::isnan(back[2 * kMomentBlock]) && std::isnan(back[3 * kMomentBlock - 1]));
}

TEST(AdamW, DoesNotDependOnTheNumberOfThreads) {
  const AdamWTensors start = with_moments(random_parameters(at::kBFloat16, false), at::kByte);
  testing::expect_same_on_any_threads([&] {
    AdamWTensors tensors = copy_of(start);
    adamw_(tensors, stochastic(1, 5));
    tensors.parameters.push_back(global_norm(tensors.gradients));
    tensors.parameters.insert(tensors.parameters.end(), tensors.exp_avg.begin(), tensors.exp_avg.end());
    return tensors.parameters;
  });
}

TEST(AdamW, RefusesWhatDoesNotFit) {
  const auto refused = [](const AdamWTensors& tensors, const AdamWStep& step, const char* what) {
    EXPECT_THROW(adamw_(tensors, step), Error) << what;
  };
  AdamWTensors tensors = random_parameters(at::kFloat, false);
  refused(tensors, step_number(0), "step 0");
  refused(random_parameters(at::kBFloat16, false), step_number(1), "bf16 alone without stochastic rounding");
  refused(random_parameters(at::kBFloat16, true), stochastic(1, 1), "master copies and stochastic rounding");
  tensors.gradients[1] = random_tensor({8});
  refused(tensors, step_number(1), "gradient of another shape");
  tensors = random_parameters(at::kFloat, false);
  tensors.exp_avg[1] = tensors.exp_avg[1].to(at::kBFloat16);
  refused(tensors, step_number(1), "state of another dtype");
  tensors = random_parameters(at::kFloat, false);
  tensors.exp_avg[0] = tensors.exp_avg[0].to(at::kByte);
  refused(tensors, step_number(1), "8-bit moments without scales");
  tensors = random_parameters(at::kFloat, false);
  tensors.positions[0] = std::int64_t{1} << 24;
  refused(tensors, step_number(1), "position beyond the random streams");
  tensors = random_parameters(at::kFloat, false);
  tensors.weight_decay.pop_back();
  refused(tensors, step_number(1), "lists of different lengths");
  tensors = random_parameters(at::kFloat, false);
  tensors.parameters[0] = random_tensor({2, 3}).t();
  refused(tensors, step_number(1), "strided parameter");
}

TEST(GlobalNorm, IsTheNormOfAllTensorsTogether) {
  const Tensors tensors = {random_tensor({100, 300}), random_tensor({7}, at::kBFloat16), random_tensor({0}),
                           random_tensor({20, 30}).t()};
  Tensors flat;
  for (const at::Tensor& tensor : tensors) {
    flat.push_back(tensor.flatten().to(at::kDouble));
  }
  const at::Tensor norm = global_norm(tensors);
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_NEAR(norm.item<double>(), at::cat(flat).norm().item<double>(), 1e-5);
  EXPECT_EQ(global_norm({}).item<double>(), 0.0);
}

}  // namespace
}  // namespace phalanx
