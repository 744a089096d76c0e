// Grouped matrix products of the expert layer on Hopper (compute capability 9.0): launch contract.
//
// Legend: E experts, M rows (routed tokens) of all experts together, sorted by expert, N output columns, K input columns.
// All matrices are bf16, row-major, 16-byte aligned, and summed in fp32. Row counts stay on the device: a launch reads
// `expert_ends` when it runs, so that it can be captured in a CUDA graph and replayed with other counts. No result depends
// on the order in which blocks run: equal inputs give bitwise equal outputs.
//
// Columns must be multiples of 8 and E at most 512; otherwise, and on other devices, launchers throw ConfigError or
// CudaError. Nothing is allocated, nothing waits for the device.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace phalanx::kernels {

// How one expert's weight lies in memory, seen from the product x W.
enum class WeightLayout {
  kOutIn,  // [E, N, K]: as Transformers stores it, forward
  kInOut,  // [E, K, N]: the same storage used for dX, or GPT-OSS's forward
};

// Rows of each expert. Expert e owns rows [expert_ends[e-1], expert_ends[e]), with expert_ends[-1] = 0.
struct ExpertRows {
  const std::int32_t* expert_ends;  // [E], device, non-decreasing, last <= rows
  int experts;                      // E
  int rows;  // M: rows that the row buffers hold; those past the last end are neither used nor written
};

// y[rows of e] = x[rows of e] W_e
struct GroupedGemmParams {
  ExpertRows groups;
  const void* x;       // [M, K] bf16
  const void* weight;  // bf16, see layout
  void* y;             // [M, N] bf16
  int n;
  int k;
  WeightLayout layout;
};
void grouped_gemm(const GroupedGemmParams& params, cudaStream_t stream);

// dW_e = dy[rows of e]^T x[rows of e], [N, K] each; an expert without rows has dW_e = 0.
struct GroupedGemmWeightGradParams {
  ExpertRows groups;
  const void* dy;  // [M, N] bf16
  const void* x;   // [M, K] bf16
  void* dw;        // [E, N, K] bf16, or fp32
  int n;
  int k;
  bool dw_is_fp32;
  bool accumulate;  // dw += instead of dw =
};
void grouped_gemm_weight_grad(const GroupedGemmWeightGradParams& params, cudaStream_t stream);

}  // namespace phalanx::kernels
