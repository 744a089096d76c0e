#include "core/error.h"
#include "ops/cpu/scores.h"
#include "ops/router.h"

#include <ATen/Dispatch.h>

#include <vector>

namespace phalanx {
namespace {

using cpu::compute_t;

// What DeepSeek-V3's router adds to the sum of sigmoid scores, which can all be 0; softmax scores need nothing.
constexpr double kSigmoidSumFloor = 1e-20;

struct Rule {
  ScoreFunction score;
  bool normalize;
  double scale;

  double sum_floor() const { return score == ScoreFunction::kSigmoid ? kSigmoidSumFloor : 0.0; }
};

template <class T>
PHALANX_VECTORIZE void softmax_row(const T* logits, compute_t<T>* scores, std::int64_t width) {
  cpu::softmax_row(logits, scores, width);
}

template <class T>
PHALANX_VECTORIZE void sigmoid_row(const T* logits, compute_t<T>* scores, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    scores[i] = cpu::sigmoid(static_cast<compute_t<T>>(logits[i]));
  }
}

template <class T>
void score_row(ScoreFunction score, const T* logits, compute_t<T>* scores, std::int64_t width) {
  if (score == ScoreFunction::kSoftmax) {
    softmax_row(logits, scores, width);
  } else {
    sigmoid_row(logits, scores, width);
  }
}

template <class C>
C sum_of_chosen(const C* scores, const std::int32_t* indices, std::int64_t top_k, const Rule& rule) {
  C sum = static_cast<C>(rule.sum_floor());
  for (std::int64_t k = 0; k < top_k; ++k) {
    sum += scores[indices[k]];
  }
  return sum;
}

template <class T>
void weigh(const compute_t<T>* scores, const std::int32_t* indices, std::int64_t top_k, const Rule& rule,
           T* weights) {
  using C = compute_t<T>;
  const C sum = rule.normalize ? sum_of_chosen(scores, indices, top_k, rule) : C(1);
  for (std::int64_t k = 0; k < top_k; ++k) {
    weights[k] = static_cast<T>(scores[indices[k]] / sum * static_cast<C>(rule.scale));
  }
}

// With s the scores and S the sum of the chosen ones: w_k = scale * s_k / S, thus
// ds_k = scale / S * (dw_k - sum_j dw_j s_j / S); without the normalisation ds_k = scale * dw_k.
template <class C>
void chosen_score_grads(const C* scores, const std::int32_t* indices, std::int64_t top_k, const Rule& rule,
                        const C* grad_weights, C* grad_scores) {
  const C sum = rule.normalize ? sum_of_chosen(scores, indices, top_k, rule) : C(1);
  C mean = 0;
  if (rule.normalize) {
    for (std::int64_t k = 0; k < top_k; ++k) {
      mean += grad_weights[k] * scores[indices[k]] / sum;
    }
  }
  for (std::int64_t k = 0; k < top_k; ++k) {
    grad_scores[k] = static_cast<C>(rule.scale) / sum * (grad_weights[k] - mean);
  }
}

// Gradient of the logits, written over the scores: softmax s_e * (ds_e - sum_j ds_j s_j), sigmoid
// s_e * (1 - s_e) * ds_e, where ds is zero but for the chosen.
template <class C>
void logit_grads(C* scores, const std::int32_t* indices, std::int64_t top_k, ScoreFunction score,
                 const C* grad_scores, C* chosen, std::int64_t experts) {
  C dot = 0;
  for (std::int64_t k = 0; k < top_k; ++k) {
    const C s = scores[indices[k]];
    dot += grad_scores[k] * s;
    chosen[k] = score == ScoreFunction::kSoftmax ? s * grad_scores[k] : s * (C(1) - s) * grad_scores[k];
  }
  const C factor = score == ScoreFunction::kSoftmax ? -dot : C(0);
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    scores[expert] *= factor;
  }
  for (std::int64_t k = 0; k < top_k; ++k) {
    scores[indices[k]] += chosen[k];
  }
}

void check_replayed(const at::Tensor& indices, std::int64_t experts) {
  const auto* data = indices.const_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < indices.numel(); ++i) {
    PHALANX_CHECK(data[i] >= 0 && data[i] < experts, Error, "router: the replayed routing sends token ",
                  i / indices.size(1), " to expert ", data[i], "; there are ", experts);
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> router_forward_cpu(const at::Tensor& logits_in,
                                                      const std::optional<at::Tensor>& replay_indices,
                                                      std::int64_t top_k, std::int64_t score, bool normalize,
                                                      double scale) {
  const Rule rule{static_cast<ScoreFunction>(score), normalize, scale};
  const at::Tensor logits = logits_in.contiguous();
  const std::int64_t tokens = logits.size(0), experts = logits.size(1);
  at::Tensor weights = logits.new_empty({tokens, top_k});
  at::Tensor indices = logits.new_empty({tokens, top_k}, logits.options().dtype(at::kInt));
  if (replay_indices.has_value()) {
    indices.copy_(*replay_indices);
    check_replayed(indices, experts);
  }
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, logits.scalar_type(), "router_forward", [&] {
    const auto* logits_data = logits.const_data_ptr<scalar_t>();
    auto* indices_data = indices.mutable_data_ptr<std::int32_t>();
    auto* weights_data = weights.mutable_data_ptr<scalar_t>();
    cpu::parallel_rows(tokens, 8 * experts, [&](std::int64_t begin, std::int64_t end) {
      std::vector<compute_t<scalar_t>> scores(experts);
      for (std::int64_t token = begin; token < end; ++token) {
        score_row(rule.score, logits_data + token * experts, scores.data(), experts);
        if (!replay_indices.has_value()) {
          cpu::choose_top_k(scores.data(), experts, top_k, indices_data + token * top_k);
        }
        weigh(scores.data(), indices_data + token * top_k, top_k, rule, weights_data + token * top_k);
      }
    });
  });
  return {weights, indices};
}

at::Tensor router_backward_cpu(const at::Tensor& grad_weights_in,
                               const std::optional<at::Tensor>& grad_logits, const at::Tensor& logits_in,
                               const at::Tensor& indices, std::int64_t score, bool normalize, double scale) {
  const Rule rule{static_cast<ScoreFunction>(score), normalize, scale};
  const at::Tensor logits = logits_in.contiguous();
  const at::Tensor around = grad_logits.has_value() ? grad_logits->contiguous() : at::Tensor();
  const std::int64_t tokens = logits.size(0), experts = logits.size(1), top_k = indices.size(1);
  at::Tensor out = logits.new_empty(logits.sizes());
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, logits.scalar_type(), "router_backward", [&] {
    using C = compute_t<scalar_t>;
    const at::Tensor grad_weights = grad_weights_in.to(c10::CppTypeToScalarType<C>::value).contiguous();
    const auto* grad_data = grad_weights.template const_data_ptr<C>();
    const auto* logits_data = logits.const_data_ptr<scalar_t>();
    const auto* indices_data = indices.const_data_ptr<std::int32_t>();
    const auto* around_data = around.defined() ? around.const_data_ptr<scalar_t>() : nullptr;
    auto* out_data = out.mutable_data_ptr<scalar_t>();
    cpu::parallel_rows(tokens, 8 * experts, [&](std::int64_t begin, std::int64_t end) {
      std::vector<C> scores(experts), grad_scores(top_k), chosen(top_k);
      for (std::int64_t token = begin; token < end; ++token) {
        const auto* index = indices_data + token * top_k;
        score_row(rule.score, logits_data + token * experts, scores.data(), experts);
        chosen_score_grads(scores.data(), index, top_k, rule, grad_data + token * top_k, grad_scores.data());
        logit_grads(scores.data(), index, top_k, rule.score, grad_scores.data(), chosen.data(), experts);
        for (std::int64_t expert = 0; expert < experts; ++expert) {
          const std::int64_t at = token * experts + expert;
          const C past = around_data == nullptr ? C(0) : static_cast<C>(around_data[at]);
          out_data[at] = static_cast<scalar_t>(past + scores[expert]);
        }
      }
    });
  });
  return out;
}

}  // namespace phalanx
