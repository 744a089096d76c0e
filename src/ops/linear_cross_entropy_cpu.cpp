#include "core/error.h"
#include "ops/cpu/exp.h"
#include "ops/cpu/vectorize.h"
#include "ops/linear_cross_entropy.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace phalanx {
namespace {

using cpu::compute_t;

// What loss, entropy and gradient need of one row.
template <class C>
struct RowSums {
  C exponentials;  // sum of exp(logit - largest)
  C weighted;      // sum of exp(logit - largest) * (logit - largest)
};

template <class T>
PHALANX_VECTORIZE void largest_of_row(const T* logits, std::int64_t vocab, compute_t<T>* result) {
  using C = compute_t<T>;
  C largest = -std::numeric_limits<C>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < vocab; ++i) {
    const C value = static_cast<C>(logits[i]);
    largest = value > largest ? value : largest;
  }
  *result = largest;
}

// A sum over a whole vocabulary in C alone would lose digits, the more the fewer lanes the instruction set has. So C sums
// blocks, and double their sums.
constexpr std::int64_t kBlock = 512;

template <class C>
struct RowTotals {
  double exponentials = 0, weighted = 0;
  void add(const RowSums<C>& block) {
    exponentials += block.exponentials;
    weighted += block.weighted;
  }
  RowSums<C> sums() const { return {static_cast<C>(exponentials), static_cast<C>(weighted)}; }
};

template <class T>
PHALANX_VECTORIZE void sum_row(const T* logits, std::int64_t vocab, compute_t<T> largest,
                               RowSums<compute_t<T>>* sums) {
  using C = compute_t<T>;
  RowTotals<C> totals;
  for (std::int64_t begin = 0; begin < vocab; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, vocab);
    C exponentials = 0, weighted = 0;
#pragma omp simd reduction(+ : exponentials, weighted)
    for (std::int64_t i = begin; i < end; ++i) {
      const C distance = static_cast<C>(logits[i]) - largest;
      const C exponential = cpu::exp(distance);
      exponentials += exponential;
      weighted += exponential * distance;
    }
    totals.add({exponentials, weighted});
  }
  *sums = totals.sums();
}

// The same, and the exponentials take the place of the logits.
template <class C>
PHALANX_VECTORIZE void sum_and_keep_row(C* logits, std::int64_t vocab, C largest, RowSums<C>* sums) {
  RowTotals<C> totals;
  for (std::int64_t begin = 0; begin < vocab; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, vocab);
    C exponentials = 0, weighted = 0;
#pragma omp simd reduction(+ : exponentials, weighted)
    for (std::int64_t i = begin; i < end; ++i) {
      const C distance = logits[i] - largest;
      const C exponential = cpu::exp(distance);
      logits[i] = exponential;
      exponentials += exponential;
      weighted += exponential * distance;
    }
    totals.add({exponentials, weighted});
  }
  *sums = totals.sums();
}

template <class C>
PHALANX_VECTORIZE void scale_row(C* values, std::int64_t vocab, C factor) {
#pragma omp simd
  for (std::int64_t i = 0; i < vocab; ++i) {
    values[i] *= factor;
  }
}

template <class T>
PHALANX_VECTORIZE void softmax_row(T* logits, std::int64_t vocab, compute_t<T> largest, compute_t<T> factor) {
  using C = compute_t<T>;
#pragma omp simd
  for (std::int64_t i = 0; i < vocab; ++i) {
    logits[i] = static_cast<T>(cpu::exp(static_cast<C>(logits[i]) - largest) * factor);
  }
}

template <class T>
bool is_first_largest(const T* logits, std::int64_t label, compute_t<T> largest) {
  using C = compute_t<T>;
  if (static_cast<C>(logits[label]) != largest) {
    return false;
  }
  for (std::int64_t i = 0; i < label; ++i) {
    if (static_cast<C>(logits[i]) == largest) {
      return false;
    }
  }
  return true;
}

// Replaces the logits by weight * (softmax - onehot). Where they are wide enough to hold the exponentials, those are
// computed once.
template <class T>
RowSums<compute_t<T>> sums_and_gradient(T* logits, std::int64_t vocab, std::int64_t label,
                                        compute_t<T> largest, compute_t<T> weight) {
  using C = compute_t<T>;
  const C label_exponential = cpu::exp(static_cast<C>(logits[label]) - largest);
  RowSums<C> sums;
  if constexpr (std::is_same_v<T, C>) {
    sum_and_keep_row(logits, vocab, largest, &sums);
    scale_row(logits, vocab, weight / sums.exponentials);
  } else {
    sum_row(logits, vocab, largest, &sums);
    softmax_row(logits, vocab, largest, weight / sums.exponentials);
  }
  logits[label] = static_cast<T>(weight * (label_exponential / sums.exponentials - C(1)));
  return sums;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy_rows_cpu(const at::Tensor& logits,
                                                                      const at::Tensor& labels_in,
                                                                      const at::Tensor& weights_in,
                                                                      bool make_gradient, bool want_entropy) {
  PHALANX_CHECK(logits.is_contiguous(), Error, "cross_entropy_rows: the logits must be contiguous");
  const at::Tensor labels = labels_in.contiguous();
  const at::Tensor weights = weights_in.contiguous();
  const std::int64_t rows = logits.size(0), vocab = logits.size(1);
  at::Tensor loss = weights.new_empty(labels.sizes());
  at::Tensor correct = labels.new_empty(labels.sizes(), labels.options().dtype(at::kBool));
  at::Tensor entropy = weights.new_empty({want_entropy ? rows : 0});
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, logits.scalar_type(), "cross_entropy_rows", [&] {
    using C = compute_t<scalar_t>;
    auto* logits_data = logits.mutable_data_ptr<scalar_t>();
    const auto* labels_data = labels.const_data_ptr<std::int64_t>();
    const auto* weights_data = weights.const_data_ptr<C>();
    auto* loss_data = loss.mutable_data_ptr<C>();
    auto* correct_data = correct.mutable_data_ptr<bool>();
    auto* entropy_data = entropy.mutable_data_ptr<C>();
    cpu::parallel_rows(rows, 4 * vocab, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        scalar_t* row_logits = logits_data + row * vocab;
        const std::int64_t label = labels_data[row];
        PHALANX_CHECK(label >= 0 && label < vocab, Error, "label ", label, " is outside the vocabulary of ",
                      vocab, "; ignored positions have the label ", kIgnoredLabel);
        C largest;
        largest_of_row(row_logits, vocab, &largest);
        const C label_distance = static_cast<C>(row_logits[label]) - largest;
        correct_data[row] = is_first_largest(row_logits, label, largest);
        RowSums<C> sums;
        if (make_gradient) {
          sums = sums_and_gradient(row_logits, vocab, label, largest, weights_data[row]);
        } else {
          sum_row(row_logits, vocab, largest, &sums);
        }
        const C log_sum = std::log(sums.exponentials);
        loss_data[row] = log_sum - label_distance;
        if (want_entropy) {
          entropy_data[row] = log_sum - sums.weighted / sums.exponentials;
        }
      }
    });
  });
  return {loss, correct, entropy};
}

}  // namespace phalanx
