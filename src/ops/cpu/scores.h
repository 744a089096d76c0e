// Softmax and top-k of one token's router logits, to be inlined into a vectorised row function.
#pragma once
#include "ops/cpu/exp.h"
#include "ops/cpu/vectorize.h"

#include <cstdint>
#include <limits>

namespace phalanx::cpu {

template <class T>
[[gnu::always_inline]] inline void softmax_row(const T* logits, compute_t<T>* scores, std::int64_t width) {
  using C = compute_t<T>;
  C largest = -std::numeric_limits<C>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < width; ++i) {
    const C value = static_cast<C>(logits[i]);
    largest = value > largest ? value : largest;
  }
  C sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) {
    scores[i] = cpu::exp(static_cast<C>(logits[i]) - largest);
    sum += scores[i];
  }
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    scores[i] = scores[i] / sum;
  }
}

// The `top_k` largest scores by falling value; among equals the lower index comes first. NaN never displaces.
template <class C>
void choose_top_k(const C* scores, std::int64_t width, std::int64_t top_k, std::int32_t* indices) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < width; ++i) {
    if (count == top_k && !(scores[i] > scores[indices[count - 1]])) {
      continue;
    }
    std::int64_t place = count < top_k ? count++ : count - 1;
    for (; place > 0 && scores[i] > scores[indices[place - 1]]; --place) {
      indices[place] = indices[place - 1];
    }
    indices[place] = static_cast<std::int32_t>(i);
  }
}

}  // namespace phalanx::cpu
