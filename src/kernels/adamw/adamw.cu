// AdamW over all parameters in one launch, a block per chunk. The intrinsics keep the compiler from contracting a * b + c where the
// CPU rounds twice.
#include "kernels/adamw/adamw.h"
#include "kernels/adamw/moments.cuh"
#include "kernels/adamw/tensor_list.cuh"
#include "kernels/common/launch.cuh"

namespace phalanx::kernels {
namespace {

constexpr int kThreads = 256;

// root / factor, correctly rounded, from the rounded inverse of the factor: two corrections by exact remainders. `root` is a square
// root and `factor` in (0, 1], so that nothing over- or underflows on the way. Half the instructions of a division.
__device__ float divide_root(float root, float factor, float inverse) {
  float quotient = __fmul_rn(root, inverse);
  quotient = __fmaf_rn(__fmaf_rn(-quotient, factor, root), inverse, quotient);
  quotient = __fmaf_rn(__fmaf_rn(-quotient, factor, root), inverse, quotient);
  return root < INFINITY ? quotient : root;
}

__device__ void step(float gradient, float decay, const AdamWFactors& f, float& value, float& exp_avg,
                     float& exp_avg_sq) {
  const float grad = __fmul_rn(gradient, f.gradient_scale);
  exp_avg = __fmaf_rn(f.one_minus_beta1, __fsub_rn(grad, exp_avg), exp_avg);
  exp_avg_sq = __fmaf_rn(__fmul_rn(f.one_minus_beta2, grad), grad, __fmul_rn(exp_avg_sq, f.beta2));
  const float denominator =
      __fadd_rn(divide_root(__fsqrt_rn(exp_avg_sq), f.root_correction2, f.inverse_root), f.eps);
  value = __fadd_rn(__fmul_rn(value, decay), __fdiv_rn(__fmul_rn(f.minus_step_size, exp_avg), denominator));
}

template <AdamWMoments kMoments, AdamWValue kValue, class Gradient>
__device__ void step_run(const AdamWTensor& tensor, const AdamWParams& p, const Run& run) {
  auto* wide = kValue == AdamWValue::kBf16Master ? tensor.master : static_cast<float*>(tensor.parameter);
  auto* narrow = static_cast<__nv_bfloat16*>(tensor.parameter);
  float value[kUnit], gradient[kUnit], exp_avg[kUnit], exp_avg_sq[kUnit];
  if constexpr (kValue == AdamWValue::kBf16Stochastic) {
    load_unit(narrow + run.at, run.count, value);
  } else {
    load_unit(wide + run.at, run.count, value);
  }
  load_unit(static_cast<const Gradient*>(tensor.gradient) + run.at, run.count, gradient);
  load_moments<kMoments>(tensor, run, exp_avg, exp_avg_sq);
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    step(gradient[i], tensor.decay, p.factors, value[i], exp_avg[i], exp_avg_sq[i]);
  }
  store_moments<kMoments>(exp_avg, exp_avg_sq, tensor, run, p.seed);
  if constexpr (kValue == AdamWValue::kBf16Stochastic) {
    store_stochastically(value, narrow, run, random_of(run, p.seed, tensor.stream));
  } else {
    store_unit(value, wide + run.at, run.count);
  }
  if constexpr (kValue == AdamWValue::kBf16Master) {
    store_unit(value, narrow + run.at, run.count);
  }
}

template <AdamWMoments kMoments, AdamWValue kValue, class Gradient>
__device__ void step_chunk(const AdamWTensor& tensor, const AdamWParams& p, std::int64_t begin) {
  static_assert(kTensorChunk % kMomentBlock == 0);
  const std::int64_t end = min(begin + kTensorChunk, tensor.span.elements);
  // The threads of a block of moments stay together to its end.
  const std::int64_t last = kMoments == AdamWMoments::kEightBit ? moment_blocks(end) * kMomentBlock : end;
  for (std::int64_t at = begin + threadIdx.x * kUnit; at < last; at += kThreads * kUnit) {
    const auto count = static_cast<int>(min(end - at, std::int64_t{kUnit}));
    step_run<kMoments, kValue, Gradient>(tensor, p, {at, count});
  }
}

template <AdamWMoments kMoments, AdamWValue kValue>
__device__ void step_bf16_chunk(const AdamWTensor& tensor, const AdamWParams& p, std::int64_t begin) {
  if (tensor.gradient_element == Element::kBf16) {
    step_chunk<kMoments, kValue, __nv_bfloat16>(tensor, p, begin);
  } else {
    step_chunk<kMoments, kValue, float>(tensor, p, begin);
  }
}

template <AdamWMoments kMoments>
__global__ void __launch_bounds__(kThreads, 3) adamw_kernel(const __grid_constant__ AdamWParams p) {
  const std::int64_t chunk = blockIdx.x;
  const AdamWTensor tensor = entry_of_chunk(p.tensors, p.tensor_count, chunk);
  const std::int64_t begin = (chunk - tensor.span.first_chunk) * kTensorChunk;
  switch (tensor.value) {
    case AdamWValue::kFp32:
      step_chunk<kMoments, AdamWValue::kFp32, float>(tensor, p, begin);
      break;
    case AdamWValue::kBf16Master:
      step_bf16_chunk<kMoments, AdamWValue::kBf16Master>(tensor, p, begin);
      break;
    case AdamWValue::kBf16Stochastic:
      step_bf16_chunk<kMoments, AdamWValue::kBf16Stochastic>(tensor, p, begin);
      break;
  }
}

}  // namespace

void adamw(const AdamWParams& p, cudaStream_t stream) {
  if (p.chunks == 0) {
    return;
  }
  const auto kernel = p.moments == AdamWMoments::kFp32   ? adamw_kernel<AdamWMoments::kFp32>
                      : p.moments == AdamWMoments::kBf16 ? adamw_kernel<AdamWMoments::kBf16>
                                                         : adamw_kernel<AdamWMoments::kEightBit>;
  kernel<<<static_cast<unsigned>(p.chunks), kThreads, 0, stream>>>(p);
  check_launch("adamw");
}

}  // namespace phalanx::kernels
