#include "core/error.h"
#include "ops/cpu/exp.h"
#include "ops/cpu/vectorize.h"
#include "ops/linear_cross_entropy.h"

#include <ATen/Dispatch.h>

#include <cmath>
#include <limits>

namespace phalanx {
namespace {

using cpu::compute_t;

// What softmax and entropy need of one row.
template <class C>
struct RowSums {
  C largest;
  C exponentials;  // sum of exp(logit - largest)
  C weighted;      // sum of exp(logit - largest) * (logit - largest)
};

template <class T>
PHALANX_VECTORIZE void sum_row(const T* logits, std::int64_t vocab, RowSums<compute_t<T>>* sums) {
  using C = compute_t<T>;
  C largest = -std::numeric_limits<C>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < vocab; ++i) {
    const C value = static_cast<C>(logits[i]);
    largest = value > largest ? value : largest;
  }
  C exponentials = 0;
#pragma omp simd reduction(+ : exponentials)
  for (std::int64_t i = 0; i < vocab; ++i) {
    exponentials += cpu::exp(static_cast<C>(logits[i]) - largest);
  }
  sums->largest = largest;
  sums->exponentials = exponentials;
}

template <class T>
PHALANX_VECTORIZE void weigh_row(const T* logits, std::int64_t vocab, RowSums<compute_t<T>>* sums) {
  using C = compute_t<T>;
  const C largest = sums->largest;
  C weighted = 0;
#pragma omp simd reduction(+ : weighted)
  for (std::int64_t i = 0; i < vocab; ++i) {
    const C distance = static_cast<C>(logits[i]) - largest;
    weighted += cpu::exp(distance) * distance;
  }
  sums->weighted = weighted;
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

// Replaces the logits by weight * (softmax - onehot).
template <class T>
void gradient_row(T* logits, std::int64_t vocab, std::int64_t label, const RowSums<compute_t<T>>& sums,
                  compute_t<T> weight) {
  using C = compute_t<T>;
  const C label_probability = cpu::exp(static_cast<C>(logits[label]) - sums.largest) / sums.exponentials;
  softmax_row(logits, vocab, sums.largest, weight / sums.exponentials);
  logits[label] = static_cast<T>(weight * (label_probability - C(1)));
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
        RowSums<C> sums{};
        sum_row(row_logits, vocab, &sums);
        const C log_sum = std::log(sums.exponentials);
        loss_data[row] = log_sum - (static_cast<C>(row_logits[label]) - sums.largest);
        correct_data[row] = is_first_largest(row_logits, label, sums.largest);
        if (want_entropy) {
          weigh_row(row_logits, vocab, &sums);
          entropy_data[row] = log_sum - sums.weighted / sums.exponentials;
        }
        if (make_gradient) {
          gradient_row(row_logits, vocab, label, sums, weights_data[row]);
        }
      }
    });
  });
  return {loss, correct, entropy};
}

}  // namespace phalanx
