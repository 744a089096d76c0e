#include "ops/cpu/vectorize.h"
#include "ops/qk_norm_rope.h"

#include <ATen/Dispatch.h>

#include <cmath>

namespace phalanx {
namespace {

using cpu::compute_t;

// The geometry of one token's heads.
struct Heads {
  std::int64_t count;  // h or g
  std::int64_t size;   // d
  std::int64_t half;   // D / 2
};

template <class T>
[[gnu::always_inline]] inline compute_t<T> reciprocal_rms(const T* x, std::int64_t size, double eps) {
  using C = compute_t<T>;
  C squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < size; ++i) {
    squares += static_cast<C>(x[i]) * static_cast<C>(x[i]);
  }
  return C(1) / std::sqrt(squares / static_cast<C>(size) + static_cast<C>(eps));
}

template <class T>
[[gnu::always_inline]] inline compute_t<T> weight_at(const T* weight, std::int64_t i) {
  return weight == nullptr ? compute_t<T>(1) : static_cast<compute_t<T>>(weight[i]);
}

// All heads of one token. `weight` [d] or nullptr for no norm.
template <class T>
PHALANX_VECTORIZE void forward_token(const T* x, const T* weight, const compute_t<T>* cos,
                                     const compute_t<T>* sin, T* y, Heads heads, double eps) {
  using C = compute_t<T>;
  const std::int64_t half = heads.half;
  for (std::int64_t head = 0; head < heads.count; ++head, x += heads.size, y += heads.size) {
    const C rstd = weight == nullptr ? C(1) : reciprocal_rms(x, heads.size, eps);
#pragma omp simd
    for (std::int64_t i = 0; i < half; ++i) {
      const C first = static_cast<C>(x[i]) * rstd * weight_at(weight, i);
      const C second = static_cast<C>(x[i + half]) * rstd * weight_at(weight, i + half);
      y[i] = static_cast<T>(first * cos[i] - second * sin[i]);
      y[i + half] = static_cast<T>(second * cos[i] + first * sin[i]);
    }
    for (std::int64_t i = 2 * half; i < heads.size; ++i) {
      y[i] = static_cast<T>(static_cast<C>(x[i]) * rstd * weight_at(weight, i));
    }
  }
}

// The rotation back, then RMSNorm's backward: with n = x * rstd and u the gradient rotated back,
// grad_x = rstd * (u * weight - n * mean(u * weight * n)) and grad_weight += u * n.
// Without a norm grad_x = u.
template <class T>
PHALANX_VECTORIZE void backward_token(const T* grad_y, const T* x, const T* weight, const compute_t<T>* cos,
                                      const compute_t<T>* sin, T* grad_x, compute_t<T>* grad_weight,
                                      Heads heads, double eps) {
  using C = compute_t<T>;
  const std::int64_t half = heads.half;
  for (std::int64_t head = 0; head < heads.count;
       ++head, grad_y += heads.size, x += heads.size, grad_x += heads.size) {
    C rstd = 1, mean = 0;
    if (weight != nullptr) {
      rstd = reciprocal_rms(x, heads.size, eps);
      C dot = 0;
#pragma omp simd reduction(+ : dot)
      for (std::int64_t i = 0; i < half; ++i) {
        const C first = static_cast<C>(grad_y[i]) * cos[i] + static_cast<C>(grad_y[i + half]) * sin[i];
        const C second = static_cast<C>(grad_y[i + half]) * cos[i] - static_cast<C>(grad_y[i]) * sin[i];
        const C first_term = first * static_cast<C>(x[i]) * rstd;
        const C second_term = second * static_cast<C>(x[i + half]) * rstd;
        grad_weight[i] += first_term;
        grad_weight[i + half] += second_term;
        dot += first_term * static_cast<C>(weight[i]) + second_term * static_cast<C>(weight[i + half]);
      }
      for (std::int64_t i = 2 * half; i < heads.size; ++i) {
        const C term = static_cast<C>(grad_y[i]) * static_cast<C>(x[i]) * rstd;
        grad_weight[i] += term;
        dot += term * static_cast<C>(weight[i]);
      }
      mean = dot / static_cast<C>(heads.size);
    }
#pragma omp simd
    for (std::int64_t i = 0; i < half; ++i) {
      const C first = static_cast<C>(grad_y[i]) * cos[i] + static_cast<C>(grad_y[i + half]) * sin[i];
      const C second = static_cast<C>(grad_y[i + half]) * cos[i] - static_cast<C>(grad_y[i]) * sin[i];
      grad_x[i] = static_cast<T>(rstd * (first * weight_at(weight, i) - static_cast<C>(x[i]) * rstd * mean));
      grad_x[i + half] = static_cast<T>(
          rstd * (second * weight_at(weight, i + half) - static_cast<C>(x[i + half]) * rstd * mean));
    }
    for (std::int64_t i = 2 * half; i < heads.size; ++i) {
      grad_x[i] = static_cast<T>(
          rstd * (static_cast<C>(grad_y[i]) * weight_at(weight, i) - static_cast<C>(x[i]) * rstd * mean));
    }
  }
}

// x [T, heads, d] with dense heads; the distance between tokens is free.
at::Tensor dense_heads(const at::Tensor& x) {
  return x.stride(2) == 1 && x.stride(1) == x.size(2) ? x : x.contiguous();
}

template <class T>
const T* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

at::Tensor contiguous_or_undefined(const OptionalTensor& tensor) {
  return tensor.has_value() ? tensor->contiguous() : at::Tensor();
}

// One of q and k.
at::Tensor forward_one(const at::Tensor& x_in, const OptionalTensor& weight_in, const at::Tensor& cos,
                       const at::Tensor& sin, double eps) {
  const at::Tensor x = dense_heads(x_in);
  const at::Tensor weight = contiguous_or_undefined(weight_in);
  at::Tensor y = x.new_empty(x.sizes());
  const Heads heads{x.size(1), x.size(2), cos.size(1)};
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "qk_norm_rope_forward", [&] {
    using C = compute_t<scalar_t>;
    const auto* x_data = x.const_data_ptr<scalar_t>();
    const auto* weight_data = data_or_null<scalar_t>(weight);
    const auto* cos_data = cos.const_data_ptr<C>();
    const auto* sin_data = sin.const_data_ptr<C>();
    auto* y_data = y.mutable_data_ptr<scalar_t>();
    const std::int64_t x_stride = x.stride(0), y_stride = heads.count * heads.size;
    cpu::parallel_rows(x.size(0), 2 * y_stride, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t token = begin; token < end; ++token) {
        forward_token(x_data + token * x_stride, weight_data, cos_data + token * heads.half,
                      sin_data + token * heads.half, y_data + token * y_stride, heads, eps);
      }
    });
  });
  return y;
}

// Writes the gradient of one of q and k into `grad_x` [T, heads * d], columns of a wider tensor, and gives that of
// its norm weight.
at::Tensor backward_one(const at::Tensor& grad_y_in, const at::Tensor& x_in, const OptionalTensor& weight_in,
                        const at::Tensor& cos, const at::Tensor& sin, double eps, const at::Tensor& grad_x) {
  const at::Tensor grad_y = grad_y_in.contiguous();
  const at::Tensor x = dense_heads(x_in);
  const at::Tensor weight = contiguous_or_undefined(weight_in);
  const Heads heads{x.size(1), x.size(2), cos.size(1)};
  // The weight gradient is summed over fixed groups of tokens, then over the groups: the same on any number of
  // threads.
  constexpr std::int64_t kTokensPerGroup = 64;
  const std::int64_t tokens = x.size(0);
  const std::int64_t groups = (tokens + kTokensPerGroup - 1) / kTokensPerGroup;
  at::Tensor partial = weight.defined() ? cos.new_zeros({groups, heads.size}) : at::Tensor();
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "qk_norm_rope_backward", [&] {
    using C = compute_t<scalar_t>;
    const auto* grad_y_data = grad_y.const_data_ptr<scalar_t>();
    const auto* x_data = x.const_data_ptr<scalar_t>();
    const auto* weight_data = data_or_null<scalar_t>(weight);
    const auto* cos_data = cos.const_data_ptr<C>();
    const auto* sin_data = sin.const_data_ptr<C>();
    auto* grad_x_data = grad_x.mutable_data_ptr<scalar_t>();
    auto* partial_data = partial.defined() ? partial.mutable_data_ptr<C>() : nullptr;
    const std::int64_t x_stride = x.stride(0), grad_x_stride = grad_x.stride(0);
    const std::int64_t width = heads.count * heads.size;
    cpu::parallel_rows(groups, 4 * kTokensPerGroup * width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t token = begin * kTokensPerGroup; token < std::min(tokens, end * kTokensPerGroup);
           ++token) {
        auto* grad_weight =
            partial_data == nullptr ? nullptr : partial_data + (token / kTokensPerGroup) * heads.size;
        backward_token(grad_y_data + token * width, x_data + token * x_stride, weight_data,
                       cos_data + token * heads.half, sin_data + token * heads.half,
                       grad_x_data + token * grad_x_stride, grad_weight, heads, eps);
      }
    });
  });
  return partial.defined() ? partial.sum(0).to(weight.scalar_type()) : at::Tensor();
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> qk_norm_rope_forward_cpu(const at::Tensor& q, const at::Tensor& k,
                                                            const OptionalTensor& q_norm,
                                                            const OptionalTensor& k_norm,
                                                            const at::Tensor& cos_in,
                                                            const at::Tensor& sin_in, double eps) {
  const at::Tensor cos = cos_in.contiguous(), sin = sin_in.contiguous();
  return {forward_one(q, q_norm, cos, sin, eps), forward_one(k, k_norm, cos, sin, eps)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> qk_norm_rope_backward_cpu(
    const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v, const at::Tensor& q,
    const at::Tensor& k, const OptionalTensor& q_norm, const OptionalTensor& k_norm, const at::Tensor& cos_in,
    const at::Tensor& sin_in, double eps) {
  const at::Tensor cos = cos_in.contiguous(), sin = sin_in.contiguous();
  const std::int64_t tokens = q.size(0), head = q.size(2);
  const std::int64_t q_width = q.size(1) * head, k_width = k.size(1) * head, v_width = grad_v.size(1) * head;
  at::Tensor grad_qkv = q.new_empty({tokens, q_width + k_width + v_width});
  const at::Tensor grad_q_norm =
      backward_one(grad_q, q, q_norm, cos, sin, eps, grad_qkv.narrow(1, 0, q_width));
  const at::Tensor grad_k_norm =
      backward_one(grad_k, k, k_norm, cos, sin, eps, grad_qkv.narrow(1, q_width, k_width));
  if (v_width > 0) {
    grad_qkv.narrow(1, q_width + k_width, v_width).copy_(grad_v.reshape({tokens, v_width}));
  }
  return {grad_qkv, grad_q_norm, grad_k_norm};
}

}  // namespace phalanx
