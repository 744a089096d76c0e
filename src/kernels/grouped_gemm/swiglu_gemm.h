// Grouped matrix products with SwiGLU or its gradient in the epilogue: launch contract.
//
// Conventions, checks and the legend are those of grouped_gemm.h; I is the width of an expert. z = [gate | up] is the output
// of the up projection before the activation, a = silu(gate) up the activation.
#pragma once
#include "kernels/grouped_gemm/grouped_gemm.h"

namespace phalanx::kernels {

// z = x[rows of e] W_e^T and a, computed from z as rounded.
struct SwigluGemmParams {
  ExpertRows groups;
  const void* x;       // [M, K] bf16
  const void* weight;  // [E, 2I, K] bf16, gate rows first
  void* z;             // [M, 2I] bf16: what backward needs
  void* a;             // [M, I] bf16
  int intermediate;    // I
  int k;
};
void swiglu_gemm(const SwigluGemmParams& params, cudaStream_t stream);

// The gradient through the down projection and the activation. With W_e the down projection [H, I], s the routing weight
// of a row, da' = dy[rows of e] W_e not yet scaled, and a recomputed from z:
//   dz = [s da' up silu'(gate) | s da' silu(gate)],  scaled_a = s a,  ds = <da', a>
// since the row's share of the output is s a W_e^T, so that dy^T scaled_a is the gradient of W_e and <dy, a W_e^T> = ds.
struct SwigluGradGemmParams {
  ExpertRows groups;
  const void* dy;      // [M, H] bf16: gradient of the layer's output, one row per routed token
  const void* weight;  // [E, H, I] bf16
  const void* z;       // [M, 2I] bf16
  const float* scale;  // [M]: s
  void* dz;            // [M, 2I] bf16
  void* scaled_a;      // [M, I] bf16
  float* ds_partials;  // [M, swiglu_grad_partials(I)]: summands of ds, to be added in order
  int intermediate;    // I
  int hidden;          // H
};
int swiglu_grad_partials(int intermediate);
void swiglu_grad_gemm(const SwigluGradGemmParams& params, cudaStream_t stream);

}  // namespace phalanx::kernels
