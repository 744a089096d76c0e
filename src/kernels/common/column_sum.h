// The second stage of sums over rows: blocks write partial sums in a fixed order, this adds them in a fixed order.
#pragma once
#include "kernels/common/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace phalanx::kernels {

struct ColumnSumParams {
  const float* partials;  // [rows, width]
  void* out;              // [width], rounded once
  std::int64_t rows;
  std::int64_t width;
  Element element;  // of out
};
void column_sum(const ColumnSumParams& params, cudaStream_t stream);

}  // namespace phalanx::kernels
