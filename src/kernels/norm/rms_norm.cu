// RMSNorm and its gradient, both bound by memory: a row is read once and stays in the registers of its block.
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/row_part.cuh"
#include "kernels/norm/rms_norm.h"

#include <algorithm>

namespace phalanx::kernels {
namespace {

constexpr int kMaxWidth = 16384;
constexpr int kScalars =
    16;  // of a thread where rows cannot be read 16 bytes at a time: 1,024 threads hold kMaxWidth

void check_width(const char* kernel, std::int64_t width) {
  PHALANX_CHECK(width >= 1 && width <= kMaxWidth, Error, kernel, ": rows of ", width, " values; 1 to ",
                kMaxWidth, " are supported on a GPU");
}

// Threads of a block in which each has `per_thread` accesses.
int threads_for(int accesses, int per_thread) {
  return static_cast<int>(blocks_for(blocks_for(accesses, per_thread), kWarpSize)) * kWarpSize;
}

// One block per row.
template <class T, int kWidth, int kVectors>
__global__ void __launch_bounds__(1024) forward_kernel(RmsNormForwardParams p) {
  using Part = RowPart<T, kWidth, kVectors>;
  __shared__ float scratch[kMaxWarps][1];
  const int width = static_cast<int>(p.width);
  const std::int64_t first = blockIdx.x * p.width;
  Part x;
  x.load(static_cast<const T*>(p.x) + first, width);
  float squares[1] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      squares[0] += x.value(v, i) * x.value(v, i);
    }
  }
  block_sum(squares, scratch);
  const float rstd = 1.0f / sqrtf(squares[0] / static_cast<float>(width) + p.eps);
  if (threadIdx.x == 0) {
    p.rstd[blockIdx.x] = rstd;
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = Part::at(v);
    if (at < width) {
      float y[kWidth];
      load_values<kWidth>(static_cast<const T*>(p.weight) + at, y);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        y[i] *= static_cast<float>(static_cast<T>(x.value(v, i) * rstd));
      }
      store_values<kWidth>(y, static_cast<T*>(p.y) + first + at);
    }
  }
}

// The gradient of kRows rows at a time, so that enough loads are in flight, and the running sum for the weight's.
template <class T, int kWidth, int kVectors, int kRows>
class BackwardBlock {
 public:
  using Part = RowPart<T, kWidth, kVectors>;

  __device__ explicit BackwardBlock(const RmsNormBackwardParams& p)
      : p_(p), width_(static_cast<int>(p.width)) {
    weight_.load(static_cast<const T*>(p.weight), width_);
  }

  // Rows [first, first + kRows), as far as there are so many.
  __device__ void rows(std::int64_t first, float (&scratch)[kMaxWarps][kRows]) {
    load(first);
    float dots[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const float term = grad_y_[r].value(v, i) * x_[r].value(v, i) * rstd_[r];
          weight_grad_[v][i] += term;
          dots[r] += term * weight_.value(v, i);
        }
      }
    }
    block_sum(dots, scratch);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r < p_.rows) {
        store(first + r, r, dots[r] / static_cast<float>(width_));
      }
    }
  }

  __device__ void store_weight_grad() const {
    float* partial = p_.partials + blockIdx.x * p_.width;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (Part::at(v) < width_) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          partial[Part::at(v) + i] = weight_grad_[v][i];
        }
      }
    }
  }

 private:
  __device__ void load(std::int64_t first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      x_[r].clear();
      grad_y_[r].clear();
      around_[r].clear();
      rstd_[r] = 0.0f;
      if (first + r < p_.rows) {
        const std::int64_t row = (first + r) * p_.width;
        x_[r].load(static_cast<const T*>(p_.x) + row, width_);
        grad_y_[r].load(static_cast<const T*>(p_.grad_y) + row, width_);
        if (p_.residual_grad != nullptr) {
          around_[r].load(static_cast<const T*>(p_.residual_grad) + row, width_);
        }
        rstd_[r] = p_.rstd[first + r];
      }
    }
  }

  __device__ void store(std::int64_t row, int r, float mean) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (Part::at(v) < width_) {
        float grad[kWidth];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const float normalized = x_[r].value(v, i) * rstd_[r];
          grad[i] = around_[r].value(v, i) +
                    rstd_[r] * (grad_y_[r].value(v, i) * weight_.value(v, i) - normalized * mean);
        }
        store_values<kWidth>(grad, static_cast<T*>(p_.grad_x) + row * p_.width + Part::at(v));
      }
    }
  }

  const RmsNormBackwardParams& p_;
  int width_;
  Part weight_, x_[kRows], grad_y_[kRows], around_[kRows];
  float rstd_[kRows];
  float weight_grad_[kVectors][kWidth] = {};
};

// kThreads at most, of which kBlocks blocks find room on a multiprocessor.
template <class T, int kWidth, int kVectors, int kRows, int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    backward_kernel(const __grid_constant__ RmsNormBackwardParams p) {
  __shared__ float scratch[2][kMaxWarps][kRows];
  BackwardBlock<T, kWidth, kVectors, kRows> block(p);
  int turn = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kRows; first < p.rows;
       first += std::int64_t{gridDim.x} * kRows) {
    block.rows(first, scratch[turn]);
    turn ^= 1;
  }
  block.store_weight_grad();
}

template <class T, int kWidth, int kVectors, int kRows, int kThreads, int kBlocks>
void launch_backward(const RmsNormBackwardParams& p, cudaStream_t stream) {
  const int threads = threads_for(static_cast<int>(blocks_for(p.width, kWidth)), kVectors);
  const int blocks = rms_norm_backward_blocks(p);
  backward_kernel<T, kWidth, kVectors, kRows, kThreads, kBlocks><<<blocks, threads, 0, stream>>>(p);
}

}  // namespace

void rms_norm_forward(const RmsNormForwardParams& p, cudaStream_t stream) {
  check_width("rms_norm_forward", p.width);
  if (p.rows == 0) {
    return;
  }
  with_element(p.element, [&]<class T>(T) {
    constexpr int kWide = kVectorValues<T>;
    const auto blocks = static_cast<unsigned>(p.rows);
    const int width = static_cast<int>(p.width);
    const int accesses = width / kWide;
    if (!fits_vectors<T>(p.width, p.x, p.weight, p.y)) {
      forward_kernel<T, 1, kScalars><<<blocks, threads_for(width, kScalars), 0, stream>>>(p);
    } else if (accesses <= 1024) {
      forward_kernel<T, kWide, 2><<<blocks, threads_for(accesses, 2), 0, stream>>>(p);
    } else {
      forward_kernel<T, kWide, 4><<<blocks, threads_for(accesses, 4), 0, stream>>>(p);
    }
  });
  check_launch("rms_norm_forward");
}

// As many as an H200 runs at once, on any GPU, so that the order of the sum is the same everywhere.
int rms_norm_backward_blocks(const RmsNormBackwardParams& p) {
  constexpr std::int64_t kMultiprocessors = 132;
  const std::int64_t row_bytes = p.width * (p.element == Element::kBf16 ? 2 : 4);
  const std::int64_t per_multiprocessor = row_bytes <= 4096 ? 3 : row_bytes <= 8192 ? 2 : 1;
  return static_cast<int>(std::min(p.rows, kMultiprocessors * per_multiprocessor));
}

void rms_norm_backward(const RmsNormBackwardParams& p, cudaStream_t stream) {
  check_width("rms_norm_backward", p.width);
  if (p.rows == 0) {
    return;
  }
  with_element(p.element, [&]<class T>(T) {
    constexpr int kWide = kVectorValues<T>;
    const std::int64_t accesses = p.width / kWide;
    const bool wide = fits_vectors<T>(p.width, p.x, p.weight, p.grad_y, p.residual_grad, p.grad_x);
    if (!wide || accesses > 2 * 1024) {
      launch_backward<T, 1, kScalars, 1, 1024, 1>(p, stream);
    } else if (accesses <= 256) {
      launch_backward<T, kWide, 1, 2, 256, 3>(p, stream);
    } else if (accesses <= 1024) {
      launch_backward<T, kWide, 1, 1, 1024, 1>(p, stream);
    } else {
      launch_backward<T, kWide, 2, 1, 1024, 1>(p, stream);
    }
  });
  check_launch("rms_norm_backward");
}

}  // namespace phalanx::kernels
