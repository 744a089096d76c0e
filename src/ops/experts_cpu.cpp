#include "ops/cpu/vectorize.h"
#include "ops/experts.h"

#include <ATen/Dispatch.h>

namespace phalanx {
namespace {

using cpu::compute_t;

template <class T>
PHALANX_VECTORIZE compute_t<T> weigh_row(T* activation, const T* grad_activation, compute_t<T> weight,
                                         std::int64_t width) {
  using C = compute_t<T>;
  C dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t i = 0; i < width; ++i) {
    const C value = static_cast<C>(activation[i]);
    dot += value * static_cast<C>(grad_activation[i]);
    activation[i] = static_cast<T>(weight * value);
  }
  return dot;
}

}  // namespace

at::Tensor weigh_activation_cpu_(at::Tensor activation, const at::Tensor& grad_activation,
                                 const at::Tensor& weights_in, const at::Tensor& choices) {
  const at::Tensor weights = weights_in.contiguous();
  const std::int64_t rows = activation.size(0), width = activation.size(1);
  const auto statistics = weights.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor grad_weights = weights.new_empty(weights.sizes(), weights.options().dtype(statistics));
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, activation.scalar_type(), "weigh_activation_", [&] {
    auto* activation_data = activation.mutable_data_ptr<scalar_t>();
    const auto* grad_data = grad_activation.const_data_ptr<scalar_t>();
    const auto* weight = weights.const_data_ptr<scalar_t>();
    const auto* choice = choices.const_data_ptr<std::int32_t>();
    auto* grad_weights_data = grad_weights.mutable_data_ptr<compute_t<scalar_t>>();
    cpu::parallel_rows(rows, 2 * width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        grad_weights_data[choice[row]] =
            weigh_row(activation_data + row * width, grad_data + row * width,
                      static_cast<compute_t<scalar_t>>(weight[choice[row]]), width);
      }
    });
  });
  return grad_weights;
}

}  // namespace phalanx
