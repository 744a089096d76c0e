// What one thread holds of a row that a whole block works on: kVectors accesses of kWidth values, one block width apart. The
// values stay packed, so that a row of bf16 costs half the registers.
#pragma once
#include "kernels/common/vector.cuh"

namespace phalanx::kernels {

template <class T, int kWidth, int kVectors>
class RowPart {
 public:
  // Position of access v in the row; those past its end are left out.
  __device__ static int at(int v) { return static_cast<int>((v * blockDim.x + threadIdx.x) * kWidth); }

  // What lies past the end of the row is 0.
  __device__ void load(const T* row, int width) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      vectors_[v] = at(v) < width ? Vector::load(row + at(v)) : Vector::all(0.0f);
    }
  }

  __device__ void clear() {
#pragma unroll
    for (Vector& vector : vectors_) {
      vector = Vector::all(0.0f);
    }
  }

  __device__ float value(int v, int i) const { return vectors_[v][i]; }
  __device__ float largest(int v) const { return vectors_[v].largest(); }

 private:
  using Vector = PackedValues<T, kWidth>;
  Vector vectors_[kVectors];
};

}  // namespace phalanx::kernels
