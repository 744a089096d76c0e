// Host side shared by the launchers of memory-bound kernels.
#pragma once
#include "core/error.h"
#include "kernels/common/element.h"

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace phalanx::kernels {

constexpr std::int64_t blocks_for(std::int64_t items, std::int64_t per_block) {
  return (items + per_block - 1) / per_block;
}

// After each launch: a bad configuration is reported here, under the kernel's name.
inline void check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  PHALANX_CHECK(status == cudaSuccess, CudaError, kernel, ": launch failed: ", cudaGetErrorString(status));
}

// Calls run(T{}) with the C++ type of an element.
template <class Run>
void with_element(Element element, const Run& run) {
  element == Element::kBf16 ? run(__nv_bfloat16{}) : run(float{});
}

}  // namespace phalanx::kernels
