// SwiGLU and its gradient, element by element: a thread owns kWidth neighbouring columns of a row.
#include "kernels/common/launch.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/swiglu/silu.cuh"
#include "kernels/swiglu/swiglu.h"

namespace phalanx::kernels {
namespace {

constexpr int kThreads = 256;

// Where a thread works in the [R, I] tensors and in the [R, 2I] ones.
struct Place {
  std::int64_t in_row;  // of a, grad_a
  std::int64_t gate;    // of z, grad_z
  bool inside;
};

template <int kWidth>
__device__ Place place_of_thread(std::int64_t rows, std::int64_t width) {
  const std::int64_t at = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  const std::int64_t row = at / width;
  return {at, at + row * width, row < rows};
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) forward_kernel(SwigluForwardParams p) {
  const Place place = place_of_thread<kWidth>(p.rows, p.width);
  if (!place.inside) {
    return;
  }
  const T* z = static_cast<const T*>(p.z) + place.gate;
  float gate[kWidth], a[kWidth];
  load_values<kWidth>(z, gate);
  load_values<kWidth>(z + p.width, a);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    a[i] *= silu(gate[i]).value;
  }
  store_values<kWidth>(a, static_cast<T*>(p.a) + place.in_row);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) backward_kernel(SwigluBackwardParams p) {
  const Place place = place_of_thread<kWidth>(p.rows, p.width);
  if (!place.inside) {
    return;
  }
  const T* z = static_cast<const T*>(p.z) + place.gate;
  float grad[kWidth], gate[kWidth], up[kWidth];
  load_values<kWidth>(static_cast<const T*>(p.grad_a) + place.in_row, grad);
  load_values<kWidth>(z, gate);
  load_values<kWidth>(z + p.width, up);
  float grad_gate[kWidth], grad_up[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const Silu s = silu(gate[i]);
    grad_gate[i] = grad[i] * up[i] * s.slope;
    grad_up[i] = grad[i] * s.value;
    up[i] *= s.value;
  }
  T* grad_z = static_cast<T*>(p.grad_z) + place.gate;
  store_values<kWidth>(grad_gate, grad_z);
  store_values<kWidth>(grad_up, grad_z + p.width);
  if (p.a != nullptr) {
    store_values<kWidth>(up, static_cast<T*>(p.a) + place.in_row);
  }
}

unsigned grid_of(std::int64_t rows, std::int64_t width, int per_thread) {
  return static_cast<unsigned>(blocks_for(rows * width, std::int64_t{kThreads} * per_thread));
}

}  // namespace

void swiglu_forward(const SwigluForwardParams& p, cudaStream_t stream) {
  if (p.rows * p.width == 0) {
    return;
  }
  with_element(p.element, [&]<class T>(T) {
    constexpr int kWide = kVectorValues<T>;
    const bool wide = fits_vectors<T>(p.width, p.z, p.a);
    const auto kernel = wide ? forward_kernel<T, kWide> : forward_kernel<T, 1>;
    kernel<<<grid_of(p.rows, p.width, wide ? kWide : 1), kThreads, 0, stream>>>(p);
  });
  check_launch("swiglu_forward");
}

void swiglu_backward(const SwigluBackwardParams& p, cudaStream_t stream) {
  if (p.rows * p.width == 0) {
    return;
  }
  with_element(p.element, [&]<class T>(T) {
    constexpr int kWide = kVectorValues<T>;
    const bool wide = fits_vectors<T>(p.width, p.grad_a, p.z, p.grad_z, p.a);
    const auto kernel = wide ? backward_kernel<T, kWide> : backward_kernel<T, 1>;
    kernel<<<grid_of(p.rows, p.width, wide ? kWide : 1), kThreads, 0, stream>>>(p);
  });
  check_launch("swiglu_backward");
}

}  // namespace phalanx::kernels
