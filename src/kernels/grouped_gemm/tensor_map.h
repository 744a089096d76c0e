// Host side of TMA: descriptors of three-dimensional row-major tensors.
#pragma once
#include <cuda.h>

#include <array>
#include <cstdint>

namespace phalanx::kernels {

enum class TensorMapType { kBf16, kFp32 };

// A map of `base`, dimensions innermost first, dense from `row_stride` upwards, read or written in boxes of 128 bytes by
// `box`[0] by `box`[1] with the 128-byte swizzle. Throws CudaError, naming the shape, when the driver refuses.
//   sizes        elements along each dimension
//   row_stride   elements between neighbours along dimension 1
//   slab_stride  elements between neighbours along dimension 2
CUtensorMap make_tensor_map(const void* base, TensorMapType type, std::array<int, 3> sizes,
                            std::int64_t row_stride, std::int64_t slab_stride, std::array<int, 2> box);

}  // namespace phalanx::kernels
