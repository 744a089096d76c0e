#include "ops/cpu/exp.h"
#include "ops/cpu/vectorize.h"
#include "ops/swiglu.h"

#include <ATen/Dispatch.h>

namespace phalanx {
namespace {

using cpu::compute_t;

template <class T>
PHALANX_VECTORIZE void forward_row(const T* gate, const T* up, T* a, std::int64_t width) {
  using C = compute_t<T>;
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const C g = static_cast<C>(gate[i]);
    a[i] = static_cast<T>(g * cpu::sigmoid(g) * static_cast<C>(up[i]));
  }
}

// With s = sigmoid(gate): d silu(gate) / d gate = s * (1 + gate * (1 - s)).
template <class T>
PHALANX_VECTORIZE void backward_row(const T* grad_a, const T* gate, const T* up, T* grad_gate, T* grad_up,
                                    std::int64_t width) {
  using C = compute_t<T>;
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const C g = static_cast<C>(gate[i]);
    const C grad = static_cast<C>(grad_a[i]);
    const C s = cpu::sigmoid(g);
    grad_gate[i] = static_cast<T>(grad * static_cast<C>(up[i]) * s * (C(1) + g * (C(1) - s)));
    grad_up[i] = static_cast<T>(grad * g * s);
  }
}

// As above, and a = silu(gate) * up from the same sigmoid.
template <class T>
PHALANX_VECTORIZE void backward_row_with_activation(const T* grad_a, const T* gate, const T* up, T* grad_gate,
                                                    T* grad_up, T* a, std::int64_t width) {
  using C = compute_t<T>;
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const C g = static_cast<C>(gate[i]);
    const C u = static_cast<C>(up[i]);
    const C grad = static_cast<C>(grad_a[i]);
    const C s = cpu::sigmoid(g);
    a[i] = static_cast<T>(g * s * u);
    grad_gate[i] = static_cast<T>(grad * u * s * (C(1) + g * (C(1) - s)));
    grad_up[i] = static_cast<T>(grad * g * s);
  }
}

}  // namespace

at::Tensor swiglu_forward_cpu(const at::Tensor& z_in) {
  const at::Tensor z = z_in.contiguous();
  const std::int64_t rows = z.size(0), width = z.size(1) / 2;
  at::Tensor a = z.new_empty({rows, width});
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, z.scalar_type(), "swiglu_forward", [&] {
    const auto* z_data = z.const_data_ptr<scalar_t>();
    auto* a_data = a.mutable_data_ptr<scalar_t>();
    cpu::parallel_rows(rows, 4 * width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const auto* gate = z_data + row * 2 * width;
        forward_row(gate, gate + width, a_data + row * width, width);
      }
    });
  });
  return a;
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward_cpu(const at::Tensor& grad_a_in, const at::Tensor& z_in,
                                                       bool want_activation) {
  const at::Tensor z = z_in.contiguous();
  const at::Tensor grad_a = grad_a_in.contiguous();
  const std::int64_t rows = z.size(0), width = z.size(1) / 2;
  at::Tensor grad_z = z.new_empty(z.sizes());
  at::Tensor a = want_activation ? z.new_empty({rows, width}) : at::Tensor();
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, z.scalar_type(), "swiglu_backward", [&] {
    const auto* z_data = z.const_data_ptr<scalar_t>();
    const auto* grad_a_data = grad_a.const_data_ptr<scalar_t>();
    auto* grad_z_data = grad_z.mutable_data_ptr<scalar_t>();
    auto* a_data = want_activation ? a.mutable_data_ptr<scalar_t>() : nullptr;
    cpu::parallel_rows(rows, 6 * width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const auto* gate = z_data + row * 2 * width;
        auto* grad_gate = grad_z_data + row * 2 * width;
        if (want_activation) {
          backward_row_with_activation(grad_a_data + row * width, gate, gate + width, grad_gate,
                                       grad_gate + width, a_data + row * width, width);
        } else {
          backward_row(grad_a_data + row * width, gate, gate + width, grad_gate, grad_gate + width, width);
        }
      }
    });
  });
  return {grad_z, a};
}

}  // namespace phalanx
