// Host side shared by the launchers: checks, maps of operands, the launch itself.
#pragma once
#include "core/error.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/grouped_gemm/pipeline.cuh"
#include "kernels/grouped_gemm/tensor_map.h"

namespace phalanx::kernels {

inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    cudaGetLastError();  // clear it, or every later call reports it again
    fail<CudaError>(what, ": ", cudaGetErrorString(status));
  }
}

inline void check_shape(const ExpertRows& groups, int columns_a, int columns_b) {
  PHALANX_CHECK(groups.experts >= 1 && groups.experts <= kMaxExperts && groups.rows >= 0, ConfigError,
                "grouped GEMM: ", groups.experts, " experts and ", groups.rows, " rows; expected 1 to ",
                kMaxExperts, " experts and no negative row count");
  PHALANX_CHECK(
      columns_a > 0 && columns_b > 0 && columns_a % 8 == 0 && columns_b % 8 == 0, ConfigError,
      "grouped GEMM: matrices of ", columns_a, " and ", columns_b,
      " columns; both must be positive multiples of 8 (16 bytes). Use experts_implementation grouped_mm");
}

// [rows, columns] bf16, loaded in 64 x 64 boxes.
inline CUtensorMap load_map(const void* base, int rows, int columns) {
  return make_tensor_map(base, TensorMapType::kBf16, {columns, rows, 1}, columns,
                         std::int64_t{rows} * columns, {ptx::kBoxRows, 1});
}

// [slabs, rows, columns] bf16, loaded in 64 x 64 boxes.
inline CUtensorMap load_map(const void* base, int slabs, int rows, int columns) {
  return make_tensor_map(base, TensorMapType::kBf16, {columns, rows, slabs}, columns,
                         std::int64_t{rows} * columns, {ptx::kBoxRows, 1});
}

template <class Problem>
void launch(const typename Problem::Params& params, cudaStream_t stream) {
  constexpr int kBytes = sizeof(SharedMemory<Problem::kBlockN>);
  static_assert(kBytes <= 232448, "more shared memory than a Hopper block can have");
  int device = 0;
  int multiprocessors = 0;
  int major = 0;
  check_cuda(cudaGetDevice(&device), "grouped GEMM: no current device");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
             "grouped GEMM");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "grouped GEMM");
  PHALANX_CHECK(major == 9, CudaError, "grouped GEMM: device ", device, " has compute capability ", major,
                ".x; these kernels are for Hopper (9.0). Use experts_implementation grouped_mm");
  check_cuda(
      cudaFuncSetAttribute(grouped_gemm_kernel<Problem>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "grouped GEMM: shared memory");
  const int blocks = multiprocessors / kClusterSize * kClusterSize;
  grouped_gemm_kernel<Problem><<<blocks, kThreads, kBytes, stream>>>(params);
  check_cuda(cudaGetLastError(), "grouped GEMM: launch");
}

}  // namespace phalanx::kernels
