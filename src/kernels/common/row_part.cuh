// What one thread holds of a row that a whole block works on: kVectors accesses of kWidth values, one block width apart. The
// values stay packed, so that a row of bf16 costs half the registers.
#pragma once
#include "kernels/common/vector.cuh"

namespace phalanx::kernels {

template <class T, int kWidth, int kVectors>
struct RowPart {
  Packed<T, kWidth> packed[kVectors];

  // Position of access v in the row; those past its end are left out.
  __device__ static int at(int v) { return static_cast<int>((v * blockDim.x + threadIdx.x) * kWidth); }

  __device__ void load(const T* row, int width) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (at(v) < width) {
        packed[v] = *reinterpret_cast<const Packed<T, kWidth>*>(row + at(v));
      }
    }
  }

  __device__ void clear() {
#pragma unroll
    for (auto& vector : packed) {
      vector = {};
    }
  }

  __device__ float value(int v, int i) const { return static_cast<float>(packed[v].values[i]); }
};

}  // namespace phalanx::kernels
