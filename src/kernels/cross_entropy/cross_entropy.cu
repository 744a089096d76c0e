// Cross-entropy of rows of logits, one block per row. The first pass over a row takes its maximum and its sums at once, the second,
// which finds part of the row in L2, writes the gradient over the logits.
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/row_part.cuh"
#include "kernels/cross_entropy/cross_entropy.h"

#include <cfloat>
#include <cmath>

namespace phalanx::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kVectors = 2;  // loads of a thread in flight

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// 2^x, denormal results as 0: one instruction.
__device__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Of a set of logits x: their maximum m, and with d = (x - m) / ln 2 the sums of 2^d = exp(x - m) and of 2^d * d.
struct Sums {
  float largest, exponentials, weighted;

  // d of a logit; exactly 0 for the maximum, as one multiplication less, fmaf(logit, 1 / ln 2, -m / ln 2), would not give.
  __device__ float distance(float logit) const { return (logit - largest) * kLog2E; }

  // Makes `value` the maximum, which it is not smaller than.
  __device__ void raise(float value) {
    if (value > largest) {
      const float change = (largest - value) * kLog2E;
      const float factor = exp2_fast(change);
      // Before the first logit there is nothing to scale, and the change may be infinite.
      weighted = exponentials > 0.0f ? factor * (weighted + exponentials * change) : 0.0f;
      exponentials *= factor;
      largest = value;
    }
  }

  __device__ void add(float logit) {
    const float d = distance(logit);
    const float exponential = exp2_fast(d);
    exponentials += exponential;
    weighted = fmaf(exponential, d, weighted);
  }

  __device__ void merge(Sums other) {
    const float top = fmaxf(largest, other.largest);
    raise(top);
    other.raise(top);
    exponentials += other.exponentials;
    weighted += other.weighted;
  }
};

// Of no logits. The maximum is finite, so that the distance of a logit that is -infinity to it is not NaN.
__device__ Sums no_sums() { return {-FLT_MAX, 0.0f, 0.0f}; }

__device__ Sums shuffled(const Sums& sums, int offset) {
  return {__shfl_xor_sync(kAllLanes, sums.largest, offset),
          __shfl_xor_sync(kAllLanes, sums.exponentials, offset),
          __shfl_xor_sync(kAllLanes, sums.weighted, offset)};
}

__device__ void warp_merge(Sums& sums) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    sums.merge(shuffled(sums, offset));
  }
}

// The sums of all threads of the block, to every thread.
__device__ void block_merge(Sums& sums) {
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ Sums scratch[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  warp_merge(sums);
  if (lane == 0) {
    scratch[threadIdx.x / kWarpSize] = sums;
  }
  __syncthreads();
  sums = lane < kWarps ? scratch[lane] : no_sums();
  warp_merge(sums);
}

// One row, seen by one thread.
template <class T, int kWidth>
class Row {
 public:
  using Part = RowPart<T, kWidth, kVectors>;
  static constexpr int kStep = kThreads * kWidth * kVectors;

  __device__ Row(T* logits, int vocab, std::int64_t label)
      : logits_(logits),
        vocab_(vocab),
        label_(label < 0 || label >= vocab ? -1 : static_cast<int>(label)),
        label_logit_(label_ < 0 ? NAN : static_cast<float>(logits[label_])) {}

  __device__ float label_logit() const { return label_logit_; }

  // Adds the row up; true if a logit of this thread precedes the label's in the order of the largest.
  __device__ bool sum(Sums& sums) const {
    bool beaten = false;
    for (int begin = 0; begin < vocab_; begin += kStep) {
      Part part;
      part.load(logits_ + begin, vocab_ - begin);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int at = begin + Part::at(v);
        if (at < vocab_) {
          const float largest = part.largest(v);
          sums.raise(largest);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) {
            sums.add(part.value(v, i));
          }
          if (!beaten && largest >= label_logit_) {
            beaten = precedes(part, v, at);
          }
        }
      }
    }
    return beaten;
  }

  __device__ void write_gradient(const Sums& sums, float weight) const {
    const float factor = label_ < 0 ? NAN : weight / sums.exponentials;
    for (int begin = 0; begin < vocab_; begin += kStep) {
      Part part;
      part.load(logits_ + begin, vocab_ - begin);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int at = begin + Part::at(v);
        if (at < vocab_) {
          float grad[kWidth];
#pragma unroll
          for (int i = 0; i < kWidth; ++i) {
            grad[i] = exp2_fast(sums.distance(part.value(v, i))) * factor;
          }
          if (at <= label_ && label_ < at + kWidth) {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
              grad[i] -= at + i == label_ ? weight : 0.0f;
            }
          }
          store_values<kWidth>(grad, logits_ + at);
        }
      }
    }
  }

 private:
  __device__ bool precedes(const Part& part, int v, int at) const {
    bool result = false;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float value = part.value(v, i);
      result = result || value > label_logit_ || (value == label_logit_ && at + i < label_);
    }
    return result;
  }

  T* logits_;
  int vocab_;
  int label_;  // -1: outside the vocabulary
  float label_logit_;
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, 3) rows_kernel(CrossEntropyParams p) {
  const std::int64_t number = blockIdx.x;
  const Row<T, kWidth> row(static_cast<T*>(p.logits) + number * p.vocab, static_cast<int>(p.vocab),
                           p.labels[number]);
  Sums sums = no_sums();
  const bool beaten = __syncthreads_or(row.sum(sums)) != 0;
  block_merge(sums);
  if (threadIdx.x == 0) {
    const float log_sum = logf(sums.exponentials);
    const float distance = row.label_logit() - sums.largest;
    p.loss[number] = log_sum - distance;
    p.correct[number] = !beaten && distance == 0.0f;
    if (p.entropy != nullptr) {
      p.entropy[number] = isnan(distance) ? NAN : log_sum - kLn2 * sums.weighted / sums.exponentials;
    }
  }
  if (p.make_gradient) {
    row.write_gradient(sums, p.weights[number]);
  }
}

}  // namespace

void cross_entropy_rows(const CrossEntropyParams& p, cudaStream_t stream) {
  if (p.rows == 0) {
    return;
  }
  with_element(p.element, [&]<class T>(T) {
    const bool wide = fits_vectors<T>(p.vocab, p.logits);
    const auto kernel = wide ? rows_kernel<T, kVectorValues<T>> : rows_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  });
  check_launch("cross_entropy_rows");
}

}  // namespace phalanx::kernels
