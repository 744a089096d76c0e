// AdamW over a list of parameters in one pass, in place: decoupled weight decay, states in fp32, the arithmetic of
// torch.optim.AdamW in its order. Its states come out to the bit in fp32, its parameters but for the last bit of a
// square root, which torch takes from a library that does not always round correctly.
//
// bf16 parameters come in two ways: with fp32 copies (`master`) that hold the value, or alone, rounded
// stochastically with random numbers that depend only on (seed, step, position of the parameter, element).
#pragma once
#include "ops/block.h"

#include <cstdint>
#include <vector>

namespace phalanx {

// One entry per parameter; all tensors of a parameter have its shape, contiguous.
struct AdamWTensors {
  Tensors parameters;                // fp32, fp64, or bf16
  Tensors gradients;                 // dtype of the parameter, or fp32 beside a bf16 parameter
  Tensors exp_avg, exp_avg_sq;       // fp32 (fp64 for fp64)
  Tensors master;                    // fp32 copies of bf16 parameters; empty list without them
  std::vector<double> weight_decay;  // per parameter
};

struct AdamWStep {
  double learning_rate, beta1, beta2, eps;
  std::int64_t step;      // counted from 1
  double gradient_scale;  // multiplies every gradient: clipping, 1 / number of tokens
  bool stochastic_rounding;
  std::uint64_t seed;
};

// Throws Error for lists of different lengths, tensors that differ in shape, dtypes other than above, and bf16
// parameters with neither master copies nor stochastic rounding.
void adamw_(const AdamWTensors& tensors, const AdamWStep& step);

// The Euclidean norm of all tensors together -> scalar fp32 (fp64 if one of them is fp64). Summed in fp64 in a
// fixed order, the same on any number of threads; 0 for an empty list.
at::Tensor global_norm(const Tensors& tensors);

// Stream of the random numbers of one parameter in one step; the n-th block of eight elements takes its n-th block.
constexpr std::uint64_t adamw_random_stream(std::int64_t step, std::size_t parameter) {
  constexpr int kParameterBits = 24;
  return static_cast<std::uint64_t>(step) << kParameterBits | parameter;
}

// Kernels of the device operators.
void adamw_cpu_(at::TensorList parameters, at::TensorList gradients, at::TensorList exp_avg,
                at::TensorList exp_avg_sq, at::TensorList master, at::ArrayRef<double> weight_decay,
                double learning_rate, double beta1, double beta2, double eps, std::int64_t step,
                double gradient_scale, bool stochastic_rounding, std::int64_t seed);
at::Tensor global_norm_cpu(at::TensorList tensors);
void adamw_cuda_(at::TensorList parameters, at::TensorList gradients, at::TensorList exp_avg,
                 at::TensorList exp_avg_sq, at::TensorList master, at::ArrayRef<double> weight_decay,
                 double learning_rate, double beta1, double beta2, double eps, std::int64_t step,
                 double gradient_scale, bool stochastic_rounding, std::int64_t seed);
at::Tensor global_norm_cuda(at::TensorList tensors);

// The same update in plain ATen operations, without stochastic rounding: the oracle of the tests.
void adamw_reference_(const AdamWTensors& tensors, const AdamWStep& step);

}  // namespace phalanx
