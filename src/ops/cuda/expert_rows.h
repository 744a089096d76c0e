// The row groups of the grouped GEMM kernels, from torch's tensors.
#pragma once
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "ops/cuda/launch.h"

namespace phalanx::cuda {

// ends [E] int32 on the device of the call.
inline kernels::ExpertRows expert_rows(const at::Tensor& ends, std::int64_t rows) {
  return {ends.const_data_ptr<std::int32_t>(), static_cast<int>(ends.numel()), static_cast<int>(rows)};
}

}  // namespace phalanx::cuda
