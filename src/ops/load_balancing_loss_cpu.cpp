#include "ops/cpu/scores.h"
#include "ops/load_balancing_loss.h"

#include <ATen/Dispatch.h>

#include <vector>

namespace phalanx {
namespace {

using cpu::compute_t;

// Softmax rounded to T, as values of the compute type.
template <class T>
PHALANX_VECTORIZE void rounded_softmax_row(const T* logits, compute_t<T>* scores, std::int64_t width) {
  cpu::softmax_row(logits, scores, width);
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    scores[i] = static_cast<compute_t<T>>(static_cast<T>(scores[i]));
  }
}

// softmax: grad_logits = p * (g - sum of p * g)
template <class T>
PHALANX_VECTORIZE void backward_row(const compute_t<T>* grad_scores, const compute_t<T>* scores,
                                    T* grad_logits, std::int64_t width) {
  using C = compute_t<T>;
  C dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t i = 0; i < width; ++i) {
    dot += scores[i] * grad_scores[i];
  }
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    grad_logits[i] = static_cast<T>(scores[i] * (grad_scores[i] - dot));
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> load_balancing_statistics_cpu(const at::Tensor& logits_in,
                                                                 std::int64_t top_k) {
  const at::Tensor logits = logits_in.contiguous();
  const std::int64_t tokens = logits.size(0), experts = logits.size(1);
  // Summed over fixed groups of tokens, then over the groups: the same on any number of threads.
  constexpr std::int64_t kTokensPerGroup = 64;
  const std::int64_t groups = (tokens + kTokensPerGroup - 1) / kTokensPerGroup;
  const auto statistics = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor partial = logits.new_zeros({groups, 2, experts}, logits.options().dtype(statistics));
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, logits.scalar_type(), "load_balancing_statistics", [&] {
    using C = compute_t<scalar_t>;
    const auto* logits_data = logits.const_data_ptr<scalar_t>();
    auto* partial_data = partial.mutable_data_ptr<C>();
    cpu::parallel_rows(groups, kTokensPerGroup * experts * 8, [&](std::int64_t begin, std::int64_t end) {
      std::vector<C> scores(experts);
      std::vector<std::int32_t> chosen(top_k);
      for (std::int64_t token = begin * kTokensPerGroup; token < std::min(tokens, end * kTokensPerGroup);
           ++token) {
        C* choices = partial_data + token / kTokensPerGroup * 2 * experts;
        C* score_sums = choices + experts;
        rounded_softmax_row(logits_data + token * experts, scores.data(), experts);
        cpu::choose_top_k(scores.data(), experts, top_k, chosen.data());
        for (const std::int32_t expert : chosen) {
          choices[expert] += C(1);
        }
        for (std::int64_t expert = 0; expert < experts; ++expert) {
          score_sums[expert] += scores[expert];
        }
      }
    });
  });
  const at::Tensor sums = partial.sum(0);
  return {sums[0], sums[1]};
}

at::Tensor load_balancing_backward_cpu(const at::Tensor& grad_scores_in, const at::Tensor& logits_in) {
  const at::Tensor logits = logits_in.contiguous();
  const at::Tensor grad_scores = grad_scores_in.contiguous();
  const std::int64_t tokens = logits.size(0), experts = logits.size(1);
  at::Tensor grad_logits = logits.new_empty(logits.sizes());
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, logits.scalar_type(), "load_balancing_backward", [&] {
    using C = compute_t<scalar_t>;
    const auto* logits_data = logits.const_data_ptr<scalar_t>();
    const auto* grad_scores_data = grad_scores.const_data_ptr<C>();
    auto* grad_logits_data = grad_logits.mutable_data_ptr<scalar_t>();
    cpu::parallel_rows(tokens, experts * 8, [&](std::int64_t begin, std::int64_t end) {
      std::vector<C> scores(experts);
      for (std::int64_t token = begin; token < end; ++token) {
        rounded_softmax_row(logits_data + token * experts, scores.data(), experts);
        backward_row(grad_scores_data, scores.data(), grad_logits_data + token * experts, experts);
      }
    });
  });
  return grad_logits;
}

}  // namespace phalanx
