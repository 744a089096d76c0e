// AdamW over all parameters in one launch, a block per chunk. The intrinsics keep the compiler from contracting a * b + c where the
// CPU rounds twice.
#include "core/philox.h"
#include "kernels/adamw/adamw.h"
#include "kernels/adamw/tensor_list.cuh"
#include "kernels/common/launch.cuh"

namespace phalanx::kernels {
namespace {

constexpr int kThreads = 256;

__device__ void step(float gradient, float decay, const AdamWFactors& f, float& value, float& exp_avg,
                     float& exp_avg_sq) {
  const float grad = __fmul_rn(gradient, f.gradient_scale);
  exp_avg = __fmaf_rn(f.one_minus_beta1, __fsub_rn(grad, exp_avg), exp_avg);
  exp_avg_sq = __fmaf_rn(__fmul_rn(f.one_minus_beta2, grad), grad, __fmul_rn(exp_avg_sq, f.beta2));
  const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(exp_avg_sq), f.root_correction2), f.eps);
  value = __fadd_rn(__fmul_rn(value, decay), __fdiv_rn(__fmul_rn(f.minus_step_size, exp_avg), denominator));
}

// Rounds to a bf16 number, up with the probability of the cut-off fraction.
__device__ float round_stochastically(float value, std::uint32_t random16) {
  return isfinite(value) ? __uint_as_float((__float_as_uint(value) + random16) & 0xffff0000u) : value;
}

// A run of neighbouring elements of one parameter, `at` a multiple of kUnit, and how many of them there are.
struct Run {
  std::int64_t at;
  std::int64_t count;
};

__device__ void store_stochastically(const float (&values)[kUnit], __nv_bfloat16* parameter, const Run& run,
                                     std::uint64_t seed, std::uint64_t stream) {
  static_assert(kUnit == 8, "a random block has 8 numbers of 16 bits");
  const PhiloxBlock random = philox_block(seed, stream, static_cast<std::uint64_t>(run.at / kUnit));
  float rounded[kUnit];
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const std::uint32_t pair = random[i / 2];
    rounded[i] = round_stochastically(values[i], i % 2 == 0 ? pair & 0xffffu : pair >> 16);
  }
  store_unit(rounded, parameter + run.at, run.count);
}

template <AdamWValue kValue, class Gradient>
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
  load_unit(tensor.exp_avg + run.at, run.count, exp_avg);
  load_unit(tensor.exp_avg_sq + run.at, run.count, exp_avg_sq);
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    step(gradient[i], tensor.decay, p.factors, value[i], exp_avg[i], exp_avg_sq[i]);
  }
  store_unit(exp_avg, tensor.exp_avg + run.at, run.count);
  store_unit(exp_avg_sq, tensor.exp_avg_sq + run.at, run.count);
  if constexpr (kValue == AdamWValue::kBf16Stochastic) {
    store_stochastically(value, narrow, run, p.seed, tensor.stream);
  } else {
    store_unit(value, wide + run.at, run.count);
  }
  if constexpr (kValue == AdamWValue::kBf16Master) {
    store_unit(value, narrow + run.at, run.count);
  }
}

template <AdamWValue kValue, class Gradient>
__device__ void step_chunk(const AdamWTensor& tensor, const AdamWParams& p, std::int64_t begin) {
  const std::int64_t end = min(begin + kTensorChunk, tensor.span.elements);
  for (std::int64_t at = begin + threadIdx.x * kUnit; at < end; at += kThreads * kUnit) {
    step_run<kValue, Gradient>(tensor, p, {at, end - at});
  }
}

template <AdamWValue kValue>
__device__ void step_bf16_chunk(const AdamWTensor& tensor, const AdamWParams& p, std::int64_t begin) {
  if (tensor.gradient_element == Element::kBf16) {
    step_chunk<kValue, __nv_bfloat16>(tensor, p, begin);
  } else {
    step_chunk<kValue, float>(tensor, p, begin);
  }
}

__global__ void __launch_bounds__(kThreads, 3) adamw_kernel(const __grid_constant__ AdamWParams p) {
  const std::int64_t chunk = blockIdx.x;
  const AdamWTensor tensor = entry_of_chunk(p.tensors, p.tensor_count, chunk);
  const std::int64_t begin = (chunk - tensor.span.first_chunk) * kTensorChunk;
  switch (tensor.value) {
    case AdamWValue::kFp32:
      step_chunk<AdamWValue::kFp32, float>(tensor, p, begin);
      break;
    case AdamWValue::kBf16Master:
      step_bf16_chunk<AdamWValue::kBf16Master>(tensor, p, begin);
      break;
    case AdamWValue::kBf16Stochastic:
      step_bf16_chunk<AdamWValue::kBf16Stochastic>(tensor, p, begin);
      break;
  }
}

}  // namespace

void adamw(const AdamWParams& p, cudaStream_t stream) {
  if (p.chunks == 0) {
    return;
  }
  adamw_kernel<<<static_cast<unsigned>(p.chunks), kThreads, 0, stream>>>(p);
  check_launch("adamw");
}

}  // namespace phalanx::kernels
