#include "ops/linear_cross_entropy.h"

#include "core/error.h"
#include "ops/check.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace phalanx {
namespace {

using testing::random_tensor;

at::Tensor labels_of(std::int64_t tokens, std::int64_t vocab, bool some_ignored) {
  at::Tensor labels = at::randint(vocab, {tokens}, at::TensorOptions().dtype(at::kLong));
  if (some_ignored) {
    labels.slice(0, 0, tokens, 3).fill_(kIgnoredLabel);
  }
  return labels;
}

void expect_same(std::int64_t tokens, std::int64_t width, std::int64_t vocab, bool some_ignored,
                 bool weighted, at::ScalarType dtype, double tolerance,
                 std::optional<at::ScalarType> reference_dtype = std::nullopt) {
  const at::Tensor labels = labels_of(tokens, vocab, some_ignored);
  const at::Tensor weights = weighted ? random_tensor({tokens}).abs() : at::Tensor();
  const auto fused = [&](const Tensors& in) -> Tensors {
    return {linear_cross_entropy(in[0], in[1], labels, weights).loss_sum};
  };
  const auto reference = [&](const Tensors& in) -> Tensors {
    const auto wide = reference_dtype.value_or(dtype);
    return {linear_cross_entropy_reference(in[0].to(wide), in[1].to(wide), labels, weights)
                .loss_sum.to(dtype == at::kDouble ? at::kDouble : at::kFloat)};
  };
  testing::expect_matches_reference(
      fused, reference, {random_tensor({tokens, width}, dtype), random_tensor({vocab, width}, dtype)},
      tolerance);
}

// Hears of every allocation of this thread while it lives.
class LargestAllocation final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    largest = std::max(largest, bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t largest = 0;
};

template <class Call>
std::int64_t largest_allocation(const Call& call) {
  const auto heard = std::make_shared<LargestAllocation>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, heard);
  call();
  return heard->largest;
}

TEST(LinearCrossEntropy, LogitsAreNeverWhole) {
  const std::int64_t vocab = 20000, chunk = cross_entropy_chunk_rows(vocab, 4), tokens = 3 * chunk;
  const at::Tensor hidden = random_tensor({tokens, 4}).requires_grad_(),
                   weight = random_tensor({vocab, 4}).requires_grad_();
  const at::Tensor labels = labels_of(tokens, vocab, false);
  const std::int64_t largest =
      largest_allocation([&] { linear_cross_entropy(hidden, weight, labels, {}).loss_sum.backward(); });
  EXPECT_EQ(largest, chunk * vocab * 4);
}

TEST(LinearCrossEntropy, WithoutGradientsNothingOfTheWeightsSizeIsMade) {
  const at::Tensor hidden = random_tensor({4, 64}), weight = random_tensor({5000, 64}).requires_grad_();
  const at::NoGradGuard no_grad;
  const std::int64_t largest =
      largest_allocation([&] { linear_cross_entropy(hidden, weight, labels_of(4, 5000, false), {}); });
  EXPECT_EQ(largest, 4 * 5000 * 4);  // the logits
}

TEST(LinearCrossEntropy, MatchesReference) {
  for (const auto tokens : {1, 2, 37, 300}) {
    for (const auto vocab : {2, 97, 1001}) {
      expect_same(tokens, 24, vocab, false, false, at::kFloat, 5e-6);
      expect_same(tokens, 24, vocab, tokens > 1, true, at::kFloat, 5e-6);
    }
  }
}

TEST(LinearCrossEntropy, SeveralChunks) {
  const std::int64_t rows = cross_entropy_chunk_rows(70000, 4);
  EXPECT_EQ(rows, 128);
  // Against double: fp32 products over a vocabulary differ from processor to processor by more than the tolerance.
  expect_same(2 * rows + 5, 4, 70000, true, false, at::kFloat, 5e-6, at::kDouble);
}

TEST(LinearCrossEntropy, MatchesReferenceInBfloat16) {
  expect_same(50, 32, 200, true, false, at::kBFloat16, 2e-2);
}

TEST(LinearCrossEntropy, GradientsInDoublePrecision) {
  const at::Tensor labels = labels_of(9, 11, true);
  const at::Tensor weights = random_tensor({9}, at::kDouble).abs();
  testing::expect_gradients(
      [&](const Tensors& in) -> Tensors {
        return {linear_cross_entropy(in[0], in[1], labels, weights).loss_sum};
      },
      {random_tensor({9, 5}, at::kDouble), random_tensor({11, 5}, at::kDouble)});
}

TEST(LinearCrossEntropy, PerTokenNumbers) {
  const at::Tensor hidden = random_tensor({40, 8}), weight = random_tensor({30, 8});
  const at::Tensor labels = labels_of(40, 30, true);
  const auto fused = linear_cross_entropy(hidden, weight, labels, {}, /*want_entropy=*/true);
  const auto expected = linear_cross_entropy_reference(hidden, weight, labels, {});
  EXPECT_LE(testing::relative_error(fused.token_loss, expected.token_loss), 1e-5);
  EXPECT_LE(testing::relative_error(fused.entropy, expected.entropy), 1e-5);
  EXPECT_TRUE(fused.correct.equal(expected.correct));
}

TEST(LinearCrossEntropy, OfEqualLogitsTheFirstCounts) {
  const at::Tensor hidden = random_tensor({2, 4});
  const at::Tensor weight = random_tensor({1, 4}).expand({5, 4}).contiguous();
  const at::Tensor labels = at::randint(1, {2}, at::TensorOptions().dtype(at::kLong));
  EXPECT_TRUE(linear_cross_entropy(hidden, weight, labels, {}).correct.all().item<bool>());
  EXPECT_FALSE(linear_cross_entropy(hidden, weight, labels.add(1), {}).correct.any().item<bool>());
}

// bf16 products of single chunks would round away what a further chunk adds.
TEST(LinearCrossEntropy, SumsTheHeadsGradientInFloatOverChunks) {
  const std::int64_t vocab = 70000, rows = 8 * cross_entropy_chunk_rows(vocab, 2);
  const at::Tensor hidden = random_tensor({rows, 2}, at::kBFloat16);
  const at::Tensor labels = labels_of(rows, 5, false);
  const auto gradient = [&](at::ScalarType dtype) {
    at::Tensor weight = at::zeros({vocab, 2}, at::TensorOptions().dtype(dtype)).requires_grad_();
    linear_cross_entropy(hidden.to(dtype), weight, labels, {}).loss_sum.backward();
    return weight.grad().narrow(0, 0, 5).to(at::kDouble);
  };
  // One rounding to bf16 at the end, 2^-9, and that of the logits' gradient -1 + 1/V, none.
  EXPECT_LE(testing::relative_error(gradient(at::kBFloat16), gradient(at::kFloat)), 0.0025);
}

TEST(LinearCrossEntropy, TheSameOnAnyNumberOfThreads) {
  const at::Tensor hidden = random_tensor({40000, 2}), weight = random_tensor({7, 2});
  const at::Tensor labels = labels_of(40000, 7, true);
  const int threads = at::get_num_threads();
  Tensors results;
  for (const int count : {1, 2}) {
    at::set_num_threads(count);
    const at::Tensor leaf = hidden.clone().requires_grad_();
    const auto result = linear_cross_entropy(leaf, weight, labels, {});
    result.loss_sum.backward();
    results.push_back(result.loss_sum.detach());
    results.push_back(leaf.grad());
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(results[0].equal(results[2]));
  EXPECT_TRUE(results[1].equal(results[3]));
}

TEST(LinearCrossEntropy, BackwardTwiceGivesTwiceTheGradient) {
  const at::Tensor hidden = random_tensor({6, 4}).requires_grad_(),
                   weight = random_tensor({9, 4}).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(hidden, weight, labels_of(6, 9, false), {}).loss_sum;
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = weight.grad().clone();
  loss.backward();
  EXPECT_TRUE(weight.grad().equal(once.mul(2)));
}

TEST(LinearCrossEntropy, NothingSupervised) {
  const at::Tensor hidden = random_tensor({6, 4}).requires_grad_(),
                   weight = random_tensor({9, 4}).requires_grad_();
  const at::Tensor labels = at::randint(1, {6}, at::TensorOptions().dtype(at::kLong)).fill_(kIgnoredLabel);
  const auto result = linear_cross_entropy(hidden, weight, labels, {});
  result.loss_sum.backward();
  EXPECT_EQ(result.loss_sum.item<double>(), 0.0);
  EXPECT_EQ(hidden.grad().abs().max().item<double>(), 0.0);
  EXPECT_EQ(weight.grad().abs().max().item<double>(), 0.0);
}

TEST(LinearCrossEntropy, FrozenHeadGetsNoGradient) {
  const at::Tensor hidden = random_tensor({6, 4}).requires_grad_(), weight = random_tensor({9, 4});
  linear_cross_entropy(hidden, weight, labels_of(6, 9, false), {}).loss_sum.backward();
  EXPECT_TRUE(hidden.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

TEST(LinearCrossEntropy, LabelOutsideTheVocabularyIsRefused) {
  const at::Tensor labels = labels_of(3, 9, false);
  labels[1] = 9;
  try {
    linear_cross_entropy(random_tensor({3, 4}), random_tensor({9, 4}), labels, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("label 9 is outside the vocabulary of 9"), std::string::npos);
  }
}

TEST(LinearCrossEntropy, RefusesALabelOutsideTheVocabulary) {
  const at::Tensor hidden = random_tensor({3, 4}), weight = random_tensor({7, 4});
  for (const std::int64_t label : {-1, 7, 1 << 30}) {
    const at::Tensor labels = at::tensor({label, std::int64_t{-100}, std::int64_t{6}}, at::kLong);
    EXPECT_THROW(linear_cross_entropy(hidden, weight, labels, {}), Error) << label;
  }
}

}  // namespace
}  // namespace phalanx
