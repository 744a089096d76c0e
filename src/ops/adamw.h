// AdamW over a list of parameters in one pass, in place: decoupled weight decay, the arithmetic of torch.optim.AdamW in its
// order. With moments in fp32 these come out to the bit, the parameters but for the last bit of a square root, which torch takes
// from a library that does not always round correctly.
//
// bf16 parameters come in two ways: with fp32 copies (`master`) that hold the value, or alone, rounded stochastically. Moments are
// kept in fp32, in bf16, or in 8 bits (core/moment_code.h); the update computes with them in fp32 and rounds them
// stochastically. The random numbers depend only on (seed, step, position of the parameter, element).
#pragma once
#include "ops/block.h"

#include <cstdint>
#include <vector>

namespace phalanx {

// One entry per parameter; all tensors of a parameter but the scales have its shape, contiguous.
struct AdamWTensors {
  Tensors parameters;                       // fp32, fp64, or bf16
  Tensors gradients;                        // dtype of the parameter, or fp32 beside a bf16 parameter
  Tensors exp_avg, exp_avg_sq;              // all fp32 (fp64 for fp64), all bf16, or all uint8
  Tensors exp_avg_scale, exp_avg_sq_scale;  // with uint8 moments: uint8 [moment_blocks(n)]; else empty lists
  Tensors master;                           // fp32 copies of bf16 parameters; empty list without them
  std::vector<double> weight_decay;         // per parameter
  std::vector<std::int64_t> positions;      // of the parameters in their model, in [0, 2^24)
};

// How moments are kept.
enum class MomentFormat { kFp32, kBf16, kEightBit };

struct AdamWStep {
  double learning_rate, beta1, beta2, eps;
  std::int64_t step;      // counted from 1
  double gradient_scale;  // multiplies every gradient: clipping, 1 / number of tokens
  bool stochastic_rounding;
  std::uint64_t seed;
};

// Throws Error for lists of different lengths, tensors that differ in shape, dtypes other than above, and bf16 parameters with
// neither master copies nor stochastic rounding.
void adamw_(const AdamWTensors& tensors, const AdamWStep& step);

// The Euclidean norm of all tensors together -> scalar fp32 (fp64 if one of them is fp64). Summed in fp64 in a
// fixed order, the same on any number of threads; 0 for an empty list.
at::Tensor global_norm(const Tensors& tensors);

// Stream of the random numbers of one parameter in one step; the n-th block of eight elements takes its n-th block. The
// moments have a stream of their own, in which an element's two moments share a number.
inline constexpr int kAdamWPositionBits = 24;
inline constexpr std::uint64_t kMomentStream = std::uint64_t{1} << 63;
constexpr std::uint64_t adamw_random_stream(std::int64_t step, std::int64_t position) {
  return static_cast<std::uint64_t>(step) << kAdamWPositionBits | static_cast<std::uint64_t>(position);
}

// Kernels of the device operators.
void adamw_cpu_(at::TensorList parameters, at::TensorList gradients, at::TensorList exp_avg,
                at::TensorList exp_avg_sq, at::TensorList exp_avg_scale, at::TensorList exp_avg_sq_scale,
                at::TensorList master, at::ArrayRef<double> weight_decay, at::IntArrayRef positions,
                double learning_rate, double beta1, double beta2, double eps, std::int64_t step,
                double gradient_scale, bool stochastic_rounding, std::int64_t seed);
at::Tensor global_norm_cpu(at::TensorList tensors);
void adamw_cuda_(at::TensorList parameters, at::TensorList gradients, at::TensorList exp_avg,
                 at::TensorList exp_avg_sq, at::TensorList exp_avg_scale, at::TensorList exp_avg_sq_scale,
                 at::TensorList master, at::ArrayRef<double> weight_decay, at::IntArrayRef positions,
                 double learning_rate, double beta1, double beta2, double eps, std::int64_t step,
                 double gradient_scale, bool stochastic_rounding, std::int64_t seed);
at::Tensor global_norm_cuda(at::TensorList tensors);

// The same update in plain ATen operations, without stochastic rounding and with moments in fp32: the oracle of the tests.
void adamw_reference_(const AdamWTensors& tensors, const AdamWStep& step);

}  // namespace phalanx
