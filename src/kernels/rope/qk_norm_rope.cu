// QK-norm and RoPE and their gradient. A warp owns a token: it loads the token's cosines and sines once and walks over the heads.
#include "kernels/common/launch.cuh"
#include "kernels/rope/head_part.cuh"
#include "kernels/rope/qk_norm_rope.h"

#include <algorithm>

namespace phalanx::kernels {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kMaxHeadSize = 512;
constexpr int kVectorWidth = 4;  // values; 8 of bf16 would be 16 bytes, but cost twice the registers

// Heads of a group that are loaded before the first is used. Where values come one by one, they need the registers.
template <class L, int kHeads>
inline constexpr int kBatchOf = L::kSlots == 1 ? kHeads : 1;

template <class L>
__device__ void forward_heads(const HeadsForward& p, const QkShape& shape, std::int64_t token,
                              const HeadAngles<L>& angles) {
  using T = typename L::T;
  constexpr int kBatch = kBatchOf<L, 4>;
  const int size = shape.head_size, half = shape.half_rotary;
  const T* x = static_cast<const T*>(p.x) + token * p.x_stride;
  T* y = static_cast<T*>(p.y) + token * p.heads * size;
  HeadPart<L> weight;
  weight.fill(1.0f);
  if (p.weight != nullptr) {
    weight.load(static_cast<const T*>(p.weight), size, half);
  }
  for (int begin = group_of_lane<L>(); begin - group_of_lane<L>() < p.heads; begin += L::kGroups * kBatch) {
    HeadPart<L> part[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int head = begin + b * L::kGroups;
      part[b].fill(0.0f);
      if (head < p.heads) {
        part[b].load(x + head * size, size, half);
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      float squares = 0.0f;
#pragma unroll
      for (int s = 0; s < L::kSlots; ++s) {
#pragma unroll
        for (int i = 0; i < L::kWidth; ++i) {
          squares += part[b].first(s, i) * part[b].first(s, i) + part[b].second(s, i) * part[b].second(s, i);
        }
      }
      squares = warp_sum<L::kLanes>(squares);
      const float rstd =
          p.weight == nullptr ? 1.0f : 1.0f / sqrtf(squares / static_cast<float>(size) + shape.eps);
      HeadValues<L> out;
#pragma unroll
      for (int s = 0; s < L::kSlots; ++s) {
#pragma unroll
        for (int i = 0; i < L::kWidth; ++i) {
          const float first = part[b].first(s, i) * rstd * weight.first(s, i);
          const float second = part[b].second(s, i) * rstd * weight.second(s, i);
          out.first[s][i] = first * angles.cos[s][i] - second * angles.sin[s][i];
          out.second[s][i] = second * angles.cos[s][i] + first * angles.sin[s][i];
        }
      }
      const int head = begin + b * L::kGroups;
      if (head < p.heads) {
        store_head(out, y + head * size, size, half);
      }
    }
  }
}

template <class L>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const __grid_constant__ QkNormRopeForwardParams p) {
  const std::int64_t token = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (token >= p.shape.tokens) {
    return;
  }
  const HeadAngles<L> angles(p.angles, token, p.shape.head_size, p.shape.half_rotary);
  forward_heads<L>(p.q, p.shape, token, angles);
  forward_heads<L>(p.k, p.shape, token, angles);
}

// One of q and k, over all tokens of a warp: the gradient of the heads, and the running sum for that of the weight.
template <class L>
class HeadsGradient {
 public:
  using T = typename L::T;

  __device__ HeadsGradient(const HeadsBackward& p, const QkShape& shape) : p_(p), shape_(shape) {
    weight_.fill(1.0f);
    if (p.weight != nullptr) {
      weight_.load(static_cast<const T*>(p.weight), shape.head_size, shape.half_rotary);
    }
  }

  __device__ void token(std::int64_t token, const HeadAngles<L>& angles) {
    constexpr int kBatch = kBatchOf<L, 2>;
    const int size = shape_.head_size, half = shape_.half_rotary;
    const T* x = static_cast<const T*>(p_.x) + token * p_.x_stride;
    const T* grad_y = static_cast<const T*>(p_.grad_y) + token * p_.heads * size;
    T* grad_x = static_cast<T*>(p_.grad_x) + token * p_.grad_x_stride;
    for (int begin = group_of_lane<L>(); begin - group_of_lane<L>() < p_.heads;
         begin += L::kGroups * kBatch) {
      HeadPart<L> x_part[kBatch], grad_part[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int head = begin + b * L::kGroups;
        x_part[b].fill(0.0f);
        grad_part[b].fill(0.0f);
        if (head < p_.heads) {
          x_part[b].load(x + head * size, size, half);
          grad_part[b].load(grad_y + head * size, size, half);
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int head = begin + b * L::kGroups;
        const HeadValues<L> grad = this->head(x_part[b], grad_part[b], angles);
        if (head < p_.heads) {
          store_head(grad, grad_x + head * size, size, half);
        }
      }
    }
  }

  // The sums of all warps of the block, in order. `scratch` holds a head's width for each group of lanes.
  __device__ void store_weight_grad(float* scratch) const {
    if (p_.weight == nullptr) {
      return;
    }
    const int size = shape_.head_size;
    float* own = scratch + (threadIdx.x / kWarpSize * L::kGroups + group_of_lane<L>()) * size;
    __syncthreads();  // the scratch may still be read by the call before
#pragma unroll
    for (int s = 0; s < L::kSlots; ++s) {
      const Slot slot = slot_of_lane<L>(s, size, shape_.half_rotary);
#pragma unroll
      for (int i = 0; i < L::kWidth; ++i) {
        if (slot.first < size) {
          own[slot.first + i] = weight_grad_.first[s][i];
        }
        if (slot.second < size) {
          own[slot.second + i] = weight_grad_.second[s][i];
        }
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
      float sum = 0.0f;
      for (int group = 0; group < kWarps * L::kGroups; ++group) {
        sum += scratch[group * size + i];
      }
      p_.partials[blockIdx.x * size + i] = sum;
    }
  }

 private:
  // With n = x * rstd and u the gradient rotated back: rstd * (u * weight - n * mean(u * weight * n)); without a norm u.
  __device__ HeadValues<L> head(const HeadPart<L>& x, const HeadPart<L>& grad_y,
                                const HeadAngles<L>& angles) {
    HeadValues<L> u;
    float squares = 0.0f, dot = 0.0f;
#pragma unroll
    for (int s = 0; s < L::kSlots; ++s) {
#pragma unroll
      for (int i = 0; i < L::kWidth; ++i) {
        const float cos = angles.cos[s][i], sin = angles.sin[s][i];
        u.first[s][i] = grad_y.first(s, i) * cos + grad_y.second(s, i) * sin;
        u.second[s][i] = grad_y.second(s, i) * cos - grad_y.first(s, i) * sin;
        squares += x.first(s, i) * x.first(s, i) + x.second(s, i) * x.second(s, i);
        dot += u.first[s][i] * weight_.first(s, i) * x.first(s, i) +
               u.second[s][i] * weight_.second(s, i) * x.second(s, i);
      }
    }
    if (p_.weight == nullptr) {
      return u;
    }
    squares = warp_sum<L::kLanes>(squares);
    dot = warp_sum<L::kLanes>(dot);
    const float count = static_cast<float>(shape_.head_size);
    const float variance = squares / count + shape_.eps;
    // A group without a head computes with zeros, which with eps = 0 must not become 0 * infinity.
    const float rstd = variance > 0.0f ? 1.0f / sqrtf(variance) : 0.0f;
    const float pull = rstd * rstd * dot / count;
#pragma unroll
    for (int s = 0; s < L::kSlots; ++s) {
#pragma unroll
      for (int i = 0; i < L::kWidth; ++i) {
        const float first = x.first(s, i), second = x.second(s, i);
        weight_grad_.first[s][i] += u.first[s][i] * first * rstd;
        weight_grad_.second[s][i] += u.second[s][i] * second * rstd;
        u.first[s][i] = rstd * (u.first[s][i] * weight_.first(s, i) - first * pull);
        u.second[s][i] = rstd * (u.second[s][i] * weight_.second(s, i) - second * pull);
      }
    }
    return u;
  }

  const HeadsBackward& p_;
  const QkShape& shape_;
  HeadPart<L> weight_;
  HeadValues<L> weight_grad_ = {};
};

// All tokens of the warp.
template <class L>
__device__ void backward_heads(const HeadsBackward& p, const QkShape& shape, const RopeAngles& table,
                               float* scratch) {
  HeadsGradient<L> heads(p, shape);
  for (std::int64_t token = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize; token < shape.tokens;
       token += std::int64_t{gridDim.x} * kWarps) {
    heads.token(token, HeadAngles<L>(table, token, shape.head_size, shape.half_rotary));
  }
  heads.store_weight_grad(scratch);
}

// q, then k: to take both of a token at once would load its angles once less, but keep the sums of two weights in registers.
template <class L>
__global__ void __launch_bounds__(kThreads, 3)
    backward_kernel(const __grid_constant__ QkNormRopeBackwardParams p) {
  constexpr int kGroupValues = 2 * L::kLanes * L::kSlots * L::kWidth;  // the most of a head
  __shared__ float scratch[kWarps * L::kGroups * kGroupValues];
  backward_heads<L>(p.q, p.shape, p.angles, scratch);
  backward_heads<L>(p.k, p.shape, p.angles, scratch);
}

// Calls run(HeadLayout{}) with the narrowest one that holds a head.
template <class T, class Run>
void with_layout(const QkShape& shape, bool wide, const Run& run) {
  const int slots = shape.head_size / (2 * kVectorWidth);
  if (!wide || slots > 32) {
    run(HeadLayout<T, 1, 32, kMaxHeadSize / 64>{});
  } else if (slots <= 8) {
    run(HeadLayout<T, kVectorWidth, 8, 1>{});
  } else if (slots <= 16) {
    run(HeadLayout<T, kVectorWidth, 16, 1>{});
  } else {
    run(HeadLayout<T, kVectorWidth, 32, 1>{});
  }
}

// Whether vectors of kVectorWidth can be read wherever a head begins.
template <class T, class... Pointers>
bool fits(std::int64_t stride, const Pointers*... pointers) {
  constexpr std::uintptr_t kBytes = kVectorWidth * sizeof(T);
  return stride % kVectorWidth == 0 && ((reinterpret_cast<std::uintptr_t>(pointers) % kBytes == 0) && ...);
}

// Whether the slots of a head are whole vectors.
bool slots_fit(const QkShape& shape, const RopeAngles& angles) {
  return fits<float>(shape.half_rotary, angles.cos, angles.sin) &&
         (shape.head_size - 2 * shape.half_rotary) % (2 * kVectorWidth) == 0;
}

void check_shape(const char* kernel, const QkShape& shape) {
  PHALANX_CHECK(shape.head_size >= 1 && shape.head_size <= kMaxHeadSize, Error, kernel, ": heads of ",
                shape.head_size, " values; 1 to ", kMaxHeadSize, " are supported on a GPU");
}

}  // namespace

void qk_norm_rope_forward(const QkNormRopeForwardParams& p, cudaStream_t stream) {
  check_shape("qk_norm_rope_forward", p.shape);
  if (p.shape.tokens == 0) {
    return;
  }
  with_element(p.shape.element, [&]<class T>(T) {
    const bool wide = slots_fit(p.shape, p.angles) && fits<T>(p.q.x_stride, p.q.x, p.q.weight, p.q.y) &&
                      fits<T>(p.k.x_stride, p.k.x, p.k.weight, p.k.y);
    with_layout<T>(p.shape, wide, [&]<class L>(L) {
      forward_kernel<L>
          <<<static_cast<unsigned>(blocks_for(p.shape.tokens, kWarps)), kThreads, 0, stream>>>(p);
    });
  });
  check_launch("qk_norm_rope_forward");
}

// A constant, so that the order of the sum does not depend on the GPU.
int qk_norm_rope_backward_blocks(std::int64_t tokens) {
  constexpr std::int64_t kBlocks = 396;
  return static_cast<int>(std::min(blocks_for(tokens, kWarps), kBlocks));
}

void qk_norm_rope_backward(const QkNormRopeBackwardParams& p, cudaStream_t stream) {
  check_shape("qk_norm_rope_backward", p.shape);
  if (p.shape.tokens == 0) {
    return;
  }
  with_element(p.shape.element, [&]<class T>(T) {
    const auto rows_fit = [](const HeadsBackward& h) {
      return fits<T>(h.x_stride, h.x, h.weight, h.grad_y, h.grad_x) && fits<T>(h.grad_x_stride);
    };
    const bool wide = slots_fit(p.shape, p.angles) && rows_fit(p.q) && rows_fit(p.k);
    with_layout<T>(p.shape, wide, [&]<class L>(L) {
      backward_kernel<L><<<qk_norm_rope_backward_blocks(p.shape.tokens), kThreads, 0, stream>>>(p);
    });
  });
  check_launch("qk_norm_rope_backward");
}

}  // namespace phalanx::kernels
