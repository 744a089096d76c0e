#include "core/error.h"
#include "kernels/grouped_gemm/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

namespace phalanx::kernels {
namespace {

// Asked of the driver through the runtime, so that nothing links to libcuda and machines without a GPU load the library.
PFN_cuTensorMapEncodeTiled_v12000 find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  PHALANX_CHECK(status == cudaSuccess && found == cudaDriverEntryPointSuccess, CudaError,
                "the CUDA driver offers no cuTensorMapEncodeTiled (", cudaGetErrorString(status),
                "): grouped GEMM needs driver 525 or newer");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

CUtensorMap make_tensor_map(const void* base, TensorMapType type, std::array<int, 3> sizes,
                            std::int64_t row_stride, std::int64_t slab_stride, std::array<int, 2> box) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
  const bool bf16 = type == TensorMapType::kBf16;
  const std::uint64_t element = bf16 ? 2 : 4;
  // An empty tensor is described as one row that no block ever reads.
  const cuuint64_t dims[3] = {static_cast<cuuint64_t>(sizes[0] > 0 ? sizes[0] : 1),
                              static_cast<cuuint64_t>(sizes[1] > 0 ? sizes[1] : 1),
                              static_cast<cuuint64_t>(sizes[2] > 0 ? sizes[2] : 1)};
  const cuuint64_t strides[2] = {row_stride * element, slab_stride * element};
  const cuuint32_t boxes[3] = {static_cast<cuuint32_t>(128 / element), static_cast<cuuint32_t>(box[0]),
                               static_cast<cuuint32_t>(box[1])};
  const cuuint32_t element_strides[3] = {1, 1, 1};
  CUtensorMap map{};
  const CUresult status = encode(
      &map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3,
      const_cast<void*>(base), dims, strides, boxes, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  PHALANX_CHECK(status == CUDA_SUCCESS, CudaError, "cuTensorMapEncodeTiled refused (error ",
                static_cast<int>(status), ") the tensor at ", base, " of size ", sizes[2], " x ", sizes[1],
                " x ", sizes[0], ", strides ", slab_stride, " and ", row_stride,
                ": the address and strides must be multiples of 16 bytes");
  return map;
}

}  // namespace phalanx::kernels
