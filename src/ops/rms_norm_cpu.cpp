#include "ops/cpu/vectorize.h"
#include "ops/rms_norm.h"

#include <ATen/Dispatch.h>

#include <cmath>

namespace phalanx {
namespace {

using cpu::compute_t;

template <class T>
PHALANX_VECTORIZE void forward_row(const T* x, const T* weight, T* y, compute_t<T>* rstd, std::int64_t width,
                                   double eps) {
  using C = compute_t<T>;
  C squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < width; ++i) {
    const C value = static_cast<C>(x[i]);
    squares += value * value;
  }
  const C scale = C(1) / std::sqrt(squares / static_cast<C>(width) + static_cast<C>(eps));
  *rstd = scale;
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    y[i] = static_cast<T>(static_cast<C>(weight[i]) *
                          static_cast<C>(static_cast<T>(static_cast<C>(x[i]) * scale)));
  }
}

// With n = x * rstd and g = grad_y * weight: grad_x = rstd * (g - n * mean(g * n)); grad_weight += grad_y *
// n.
template <class T>
PHALANX_VECTORIZE void backward_row(const T* grad_y, const T* x, const T* weight, compute_t<T> rstd,
                                    const T* residual_grad, T* grad_x, compute_t<T>* grad_weight,
                                    std::int64_t width) {
  using C = compute_t<T>;
  C dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t i = 0; i < width; ++i) {
    dot += static_cast<C>(grad_y[i]) * static_cast<C>(weight[i]) * static_cast<C>(x[i]) * rstd;
  }
  const C mean = dot / static_cast<C>(width);
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const C normalized = static_cast<C>(x[i]) * rstd;
    const C upstream = static_cast<C>(grad_y[i]);
    const C around = residual_grad == nullptr ? C(0) : static_cast<C>(residual_grad[i]);
    grad_x[i] = static_cast<T>(around + rstd * (upstream * static_cast<C>(weight[i]) - normalized * mean));
    grad_weight[i] += upstream * normalized;
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> rms_norm_forward_cpu(const at::Tensor& x_in, const at::Tensor& weight_in,
                                                        double eps) {
  const at::Tensor x = x_in.contiguous();
  const at::Tensor weight = weight_in.contiguous();
  const std::int64_t width = weight.numel();
  const std::int64_t rows = width == 0 ? 0 : x.numel() / width;
  at::Tensor y = x.new_empty(x.sizes());
  at::Tensor rstd = x.new_empty(x.sizes().slice(0, x.dim() - 1),
                                x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "rms_norm_forward", [&] {
    const auto* x_data = x.const_data_ptr<scalar_t>();
    const auto* weight_data = weight.const_data_ptr<scalar_t>();
    auto* y_data = y.mutable_data_ptr<scalar_t>();
    auto* rstd_data = rstd.mutable_data_ptr<compute_t<scalar_t>>();
    cpu::parallel_rows(rows, width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        forward_row(x_data + row * width, weight_data, y_data + row * width, rstd_data + row, width, eps);
      }
    });
  });
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_cpu(const at::Tensor& grad_y_in, const at::Tensor& x_in,
                                                         const at::Tensor& weight_in, const at::Tensor& rstd,
                                                         const std::optional<at::Tensor>& residual_grad) {
  const at::Tensor grad_y = grad_y_in.contiguous();
  const at::Tensor x = x_in.contiguous();
  const at::Tensor weight = weight_in.contiguous();
  const at::Tensor around = residual_grad.has_value() ? residual_grad->contiguous() : at::Tensor();
  const std::int64_t width = weight.numel();
  const std::int64_t rows = rstd.numel();
  // The weight gradient is summed over fixed groups of rows, then over the groups: the same on any number of
  // threads.
  constexpr std::int64_t kRowsPerGroup = 64;
  const std::int64_t groups = (rows + kRowsPerGroup - 1) / kRowsPerGroup;
  at::Tensor grad_x = x.new_empty(x.sizes());
  at::Tensor partial = rstd.new_zeros({groups, width});  // [groups, H]
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "rms_norm_backward", [&] {
    using C = compute_t<scalar_t>;
    const auto* grad_y_data = grad_y.const_data_ptr<scalar_t>();
    const auto* x_data = x.const_data_ptr<scalar_t>();
    const auto* weight_data = weight.const_data_ptr<scalar_t>();
    const auto* rstd_data = rstd.const_data_ptr<C>();
    const auto* around_data = around.defined() ? around.const_data_ptr<scalar_t>() : nullptr;
    auto* grad_x_data = grad_x.mutable_data_ptr<scalar_t>();
    auto* partial_data = partial.mutable_data_ptr<C>();
    cpu::parallel_rows(groups, kRowsPerGroup * width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin * kRowsPerGroup; row < std::min(rows, end * kRowsPerGroup); ++row) {
        const std::int64_t at = row * width;
        backward_row(grad_y_data + at, x_data + at, weight_data, rstd_data[row],
                     around_data == nullptr ? nullptr : around_data + at, grad_x_data + at,
                     partial_data + (row / kRowsPerGroup) * width, width);
      }
    });
  });
  return {grad_x, partial.sum(0).to(weight.scalar_type())};
}

}  // namespace phalanx
