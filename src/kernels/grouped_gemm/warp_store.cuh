// Accumulators of one warp to global memory, 16 rows by 128 bytes at a time: registers -> swizzled shared memory -> TMA.
//
// Each warp owns two buffers and needs no other warp: while TMA drains one, the warp fills the other. A slice of rows that
// ends inside the 16 is copied row by row instead, because the rows below belong to another expert.
#pragma once
#include <cuda_bf16.h>

#include "kernels/grouped_gemm/layout.h"
#include "kernels/ptx/matrix_store.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/tma.cuh"

namespace phalanx::kernels {

inline constexpr int kStoreBytes = kSliceRows * 128;  // one buffer
inline constexpr int kStoreBuffers = 2;

// Where a chunk goes when its 16 rows are not all valid.
struct RowTarget {
  __nv_bfloat16* first;  // element of the chunk's first row and column
  std::int64_t stride;   // elements between rows
  int columns;           // that lie inside the matrix, a multiple of 8; may be less than 64
  int rows;              // valid rows, 16 when all are
};

class WarpStore {
 public:
  __device__ explicit WarpStore(std::uint8_t* buffers) : buffers_(buffers), lane_(threadIdx.x % 32) {}

  // 64 columns of bf16; `values` are 8 column blocks of the wgmma layout.
  __device__ void store_bf16(const float* values, const CUtensorMap& map, int c0, int c1, int c2,
                             const RowTarget& target) {
    std::uint8_t* buffer = next_buffer();
    fill_bf16(buffer, values);
    if (target.rows == kSliceRows) {
      send(buffer, map, c0, c1, c2, false);
    } else {
      copy_rows(buffer, target);
    }
  }

  // As above for a matrix whose edges the map itself clips, stored or added.
  __device__ void write_bf16(const float* values, const CUtensorMap& map, int c0, int c1, int c2, bool add) {
    std::uint8_t* buffer = next_buffer();
    fill_bf16(buffer, values);
    send(buffer, map, c0, c1, c2, add);
  }

  // 32 columns of fp32.
  __device__ void write_fp32(const float* values, const CUtensorMap& map, int c0, int c1, int c2, bool add) {
    std::uint8_t* buffer = next_buffer();
#pragma unroll
    for (int i = 0; i < kChunkValues / 2; i += 2) {
      const int offset = swizzled_offset(accumulator_row(lane_, i), accumulator_column(lane_, i) * 4);
      *reinterpret_cast<float2*>(buffer + offset) = {values[i], values[i + 1]};
    }
    send(buffer, map, c0, c1, c2, add);
  }

  __device__ void finish() {
    if (ptx::elect_one()) {
      ptx::tma_store_wait_all();
    }
  }

 private:
  __device__ std::uint8_t* next_buffer() {
    if (ptx::elect_one()) {
      ptx::tma_store_wait_read<kStoreBuffers - 1>();
    }
    __syncwarp();
    turn_ ^= 1;
    return buffers_ + turn_ * kStoreBytes;
  }

  __device__ void fill_bf16(std::uint8_t* buffer, const float* values) const {
    // Lane l addresses row l%8 of 8x8 tile l/8; the four tiles are (rows 0-7, 8-15) x (column block j, j+1).
    const int row = lane_ % 16;
    const int column_block = lane_ / 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float* v = values + 4 * j;
      ptx::store_matrix_x4(buffer + swizzled_offset(row, (j + column_block) * 16), ptx::pack_bf16(v[0], v[1]),
                           ptx::pack_bf16(v[2], v[3]), ptx::pack_bf16(v[4], v[5]), ptx::pack_bf16(v[6], v[7]));
    }
  }

  __device__ void send(std::uint8_t* buffer, const CUtensorMap& map, int c0, int c1, int c2, bool add) {
    ptx::fence_proxy_async();
    __syncwarp();
    if (ptx::elect_one()) {
      if (add) {
        ptx::tma_add(map, buffer, c0, c1, c2);
      } else {
        ptx::tma_store(map, buffer, c0, c1, c2);
      }
      ptx::tma_store_commit();
    }
  }

  __device__ void copy_rows(const std::uint8_t* buffer, const RowTarget& target) {
    __syncwarp();
    const int granule = lane_ % 8;
    for (int row = lane_ / 8; row < target.rows; row += 4) {
      if (granule * 8 < target.columns) {
        const uint4 value = *reinterpret_cast<const uint4*>(buffer + swizzled_offset(row, granule * 16));
        *reinterpret_cast<uint4*>(target.first + row * target.stride + granule * 8) = value;
      }
    }
    if (ptx::elect_one()) {
      ptx::tma_store_commit();  // an empty group: next_buffer() counts one per chunk
    }
  }

  std::uint8_t* buffers_;
  int lane_;
  int turn_ = 0;
};

}  // namespace phalanx::kernels
