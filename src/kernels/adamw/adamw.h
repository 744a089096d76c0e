// AdamW and the norm of many tensors, each in one pass over all of them, on the GPU: launch contract.
//
// The arithmetic is that of ops/adamw_cpu.cpp, operation by operation, with the same random numbers: equal inputs give the bits
// that the CPU gives. Nothing is allocated, nothing waits for the device.
#pragma once
#include "kernels/adamw/tensor_list.h"
#include "kernels/common/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace phalanx::kernels {

// What holds the value of a parameter.
enum class AdamWValue : std::uint8_t {
  kFp32,            // the parameter itself
  kBf16Master,      // an fp32 copy; the bf16 parameter is rounded from it
  kBf16Stochastic,  // the bf16 parameter itself, rounded stochastically
};

// How the moments of all parameters are kept.
enum class AdamWMoments : std::uint8_t { kFp32, kBf16, kEightBit };

struct AdamWTensor {
  TensorSpan span;
  void* parameter;
  const void* gradient;
  void* exp_avg;  // fp32, bf16 or codes, aligned to 8 bytes
  void* exp_avg_sq;
  std::uint8_t* exp_avg_scale;  // kEightBit: one per block of moments (core/moment_code.h)
  std::uint8_t* exp_avg_sq_scale;
  float* master;                // kBf16Master
  std::uint64_t stream;         // of random numbers: kBf16Stochastic
  std::uint64_t moment_stream;  // the same for the moments: kBf16, kEightBit
  float decay;                  // 1 - learning rate * weight decay
  AdamWValue value;
  Element gradient_element;
};

// Factors that all parameters share.
struct AdamWFactors {
  float one_minus_beta1;
  float beta2, one_minus_beta2;
  float root_correction2;  // sqrt(1 - beta2^step)
  float inverse_root;      // 1 / root_correction2
  float eps;
  float minus_step_size;  // -learning rate / (1 - beta1^step)
  float gradient_scale;
};

struct AdamWParams {
  const AdamWTensor* tensors;  // in device memory
  int tensor_count;
  std::int64_t chunks;  // of all tensors
  AdamWFactors factors;
  std::uint64_t seed;
  AdamWMoments moments;
};
void adamw(const AdamWParams& params, cudaStream_t stream);

struct NormTensor {
  TensorSpan span;
  const void* values;
  Element element;
};

// sqrt of the sum of squares, summed in fp64.
struct GlobalNormParams {
  const NormTensor* tensors;  // in device memory
  int tensor_count;
  std::int64_t chunks;  // of all tensors
  double* partials;     // [chunks]
  float* norm;          // [1]
};
void global_norm(const GlobalNormParams& params, cudaStream_t stream);

}  // namespace phalanx::kernels
