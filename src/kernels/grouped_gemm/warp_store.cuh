// Accumulators of one warp to global memory, 16 rows by 128 bytes at a time: registers -> swizzled shared memory -> TMA.
//
// Each warp owns two buffers and needs no other warp: while TMA drains one, the warp fills the other. A slice of rows that
// ends inside the 16 is copied row by row instead, because the rows below belong to another expert.
#pragma once
#include "kernels/grouped_gemm/layout.h"
#include "kernels/ptx/matrix_transfer.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/tma.cuh"

#include <cuda_bf16.h>

namespace phalanx::kernels {

inline constexpr int kStoreBytes = kSliceRows * 128;  // one buffer
inline constexpr int kStoreBuffers = 2;

// 16 rows by 64 columns of bf16 in a warp's registers: word i holds the accumulators 2i and 2i + 1 of a chunk.
inline constexpr int kChunkWords = kChunkValues / 2;
using Chunk = std::uint32_t[kChunkWords];

__device__ inline void pack_chunk(const float* values, Chunk& chunk) {
#pragma unroll
  for (int i = 0; i < kChunkWords; ++i) {
    chunk[i] = ptx::pack_bf16(values[2 * i], values[2 * i + 1]);
  }
}

// A matrix with rows of several experts, of which the first `rows` of the warp's 16 are this expert's.
struct RowMatrix {
  const CUtensorMap* map;  // boxes of 64 columns by 16 rows; dimensions: column, half, row
  __nv_bfloat16* base;
  int columns;  // of one half, a multiple of 8
  int halves;   // 2 for z: gate and up side by side; else 1
};

class WarpStore {
 public:
  __device__ explicit WarpStore(std::uint8_t* buffers) : buffers_(buffers), lane_(threadIdx.x % 32) {}

  // 64 columns from `column` of a half, rows row .. row + rows - 1.
  __device__ void store(const Chunk& chunk, const RowMatrix& matrix, int column, int half, int row,
                        int rows) {
    std::uint8_t* buffer = next_buffer();
    fill(buffer, chunk);
    if (rows == kSliceRows) {
      send(buffer, *matrix.map, column, half, row, false);
    } else {
      copy_rows(buffer, matrix, column, half, row, rows);
    }
  }

  // 64 columns of bf16 of a matrix whose edges the map itself clips, stored or added.
  __device__ void write_bf16(const float* values, const CUtensorMap& map, int c0, int c1, int c2, bool add) {
    Chunk chunk;
    pack_chunk(values, chunk);
    std::uint8_t* buffer = next_buffer();
    fill(buffer, chunk);
    send(buffer, map, c0, c1, c2, add);
  }

  // The same for 32 columns of fp32.
  __device__ void write_fp32(const float* values, const CUtensorMap& map, int c0, int c1, int c2, bool add) {
    std::uint8_t* buffer = next_buffer();
#pragma unroll
    for (int i = 0; i < kChunkValues / 2; i += 2) {
      const int offset = swizzled_offset(accumulator_row(lane_, i), accumulator_column(lane_, i) * 4);
      *reinterpret_cast<float2*>(buffer + offset) = {values[i], values[i + 1]};
    }
    send(buffer, map, c0, c1, c2, add);
  }

  // 16 rows of 128 bytes as each lane fetched them (granule lane%8 of rows lane/8 + 4i), turned into a chunk.
  __device__ void exchange(const uint4 (&granules)[4], Chunk& chunk) {
    std::uint8_t* buffer = next_buffer();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<uint4*>(buffer + swizzled_offset(lane_ / 8 + 4 * i, lane_ % 8 * 16)) = granules[i];
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      ptx::load_matrix_x4(tile_row(buffer, j), chunk[2 * j], chunk[2 * j + 1], chunk[2 * j + 2],
                          chunk[2 * j + 3]);
    }
    commit_nothing();
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

  // Address that this lane gives for the four 8x8 tiles (rows 0-7, 8-15) x (column blocks j, j+1).
  __device__ std::uint8_t* tile_row(std::uint8_t* buffer, int j) const {
    return buffer + swizzled_offset(lane_ % 16, (j + lane_ / 16) * 16);
  }

  __device__ void fill(std::uint8_t* buffer, const Chunk& chunk) const {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      ptx::store_matrix_x4(tile_row(buffer, j), chunk[2 * j], chunk[2 * j + 1], chunk[2 * j + 2],
                           chunk[2 * j + 3]);
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

  __device__ void copy_rows(const std::uint8_t* buffer, const RowMatrix& matrix, int column, int half,
                            int first, int rows) {
    __syncwarp();
    const int granule = lane_ % 8;
    const int left = matrix.columns - column;
    for (int row = lane_ / 8; row < rows; row += 4) {
      if (granule * 8 < left) {
        const std::int64_t line = static_cast<std::int64_t>(first + row) * matrix.halves + half;
        *reinterpret_cast<uint4*>(matrix.base + line * matrix.columns + column + granule * 8) =
            *reinterpret_cast<const uint4*>(buffer + swizzled_offset(row, granule * 16));
      }
    }
    commit_nothing();
  }

  // next_buffer() counts one committed group per buffer used.
  __device__ void commit_nothing() {
    if (ptx::elect_one()) {
      ptx::tma_store_commit();
    }
  }

  std::uint8_t* buffers_;
  int lane_;
  int turn_ = 0;
};

}  // namespace phalanx::kernels
