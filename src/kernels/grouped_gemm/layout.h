// Address arithmetic of a warp's 16 rows of accumulators and of swizzled shared memory, shared with the host's tests.
#pragma once

namespace phalanx::kernels {

inline constexpr int kSliceRows = 16;    // rows of a tile that one warp holds
inline constexpr int kChunkValues = 32;  // accumulators per thread in 64 columns

// Byte offset of (row, byte of row) in rows of 128 bytes as TMA's 128-byte swizzle lays them: the 16-byte granules of a row
// are permuted by the row's number, so that a column of granules touches every bank once.
constexpr int swizzled_offset(int row, int byte) { return row * 128 + (byte ^ ((row & 7) << 4)); }

// Row and column, within a warp's 16 rows, of accumulator i of a lane (layout of wgmma's D).
constexpr int accumulator_row(int lane, int i) { return lane / 4 + (i & 2) * 4; }
constexpr int accumulator_column(int lane, int i) { return i / 4 * 8 + lane % 4 * 2 + (i & 1); }

}  // namespace phalanx::kernels
