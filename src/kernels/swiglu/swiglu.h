// SwiGLU, its gradient, and what the experts do with the activation, on the GPU: launch contract.
//
// Legend: R rows, I width of the MLP or expert, K experts per token.
//
// Everything is fp32 between loads and stores. Nothing is allocated, nothing waits for the device, equal inputs give equal bits.
#pragma once
#include "kernels/common/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace phalanx::kernels {

// a = silu(gate) * up
struct SwigluForwardParams {
  const void* z;       // [R, 2I]: gate, then up
  void* a;             // [R, I]
  std::int64_t rows;   // R
  std::int64_t width;  // I
  Element element;
};
void swiglu_forward(const SwigluForwardParams& params, cudaStream_t stream);

struct SwigluBackwardParams {
  const void* grad_a;  // [R, I]
  const void* z;       // [R, 2I]
  void* grad_z;        // [R, 2I]
  void* a;             // [R, I], written once more; nullptr: not wanted
  std::int64_t rows;   // R
  std::int64_t width;  // I
  Element element;
};
void swiglu_backward(const SwigluBackwardParams& params, cudaStream_t stream);

// With c = choices[r]: grad_weights[c] = <grad_activation[r], activation[r]>, and activation[r] is multiplied by weights[c].
struct WeighActivationParams {
  void* activation;             // [R, I], in place
  const void* grad_activation;  // [R, I]
  const void* weights;          // [R]: weights [T, K] by choice, R = T * K
  const std::int32_t* choices;  // [R], a permutation of 0 ... R - 1
  float* grad_weights;          // [R] by choice
  std::int64_t rows;            // R
  std::int64_t width;           // I
  Element element;
};
void weigh_activation(const WeighActivationParams& params, cudaStream_t stream);

}  // namespace phalanx::kernels
