// Which output tile comes when: plain arithmetic, shared by the kernels and the host's tests.
//
// Legend: E experts, M rows of all experts together (rows of one expert are consecutive), N columns of the output.
#pragma once

namespace phalanx::kernels {

inline constexpr int kBlockM = 128;     // rows of a tile
inline constexpr int kBlockK = 64;      // depth of one pipeline stage: 128 bytes of bf16
inline constexpr int kClusterSize = 2;  // blocks that share operand tiles by multicast
inline constexpr int kBandTiles =
    8;  // tiles along m that are finished before the next rows of an expert begin
inline constexpr int kMaxExperts = 512;

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Tile coordinates, in tiles, inside one expert's [m_tiles, n_tiles] grid.
struct TileCoord {
  int m;
  int n;
  constexpr bool operator==(const TileCoord&) const = default;
};

// The `index`-th tile of an expert. Bands of kBandTiles tiles along m keep an expert's operands in L2 however large it is;
// inside a band the path runs along m and turns at each end, so that consecutive tiles always share their m or their n:
// the two blocks of a cluster can always share an operand.
constexpr TileCoord tile_in_expert(int index, int m_tiles, int n_tiles) {
  const int band = index / (kBandTiles * n_tiles);
  const int first_m = band * kBandTiles;
  const int band_tiles = m_tiles - first_m < kBandTiles ? m_tiles - first_m : kBandTiles;
  const int in_band = index - first_m * n_tiles;
  const int n = in_band / band_tiles;
  const int m = in_band % band_tiles;
  const bool backwards = n % 2 != 0;
  return {first_m + (backwards ? band_tiles - 1 - m : m), n};
}

// Bounds of expert e's rows, from the end of each expert's rows.
constexpr int first_row(const int* expert_ends, int e) { return e == 0 ? 0 : expert_ends[e - 1]; }

// A tile of dW: every expert has the same number of tiles, in units of a whole cluster, so that the two blocks of a
// cluster always work on the same expert and walk the same number of stages.
struct WeightTile {
  int expert;
  int index;  // inside the expert; >= tiles_per_expert: nothing to do but keep step
};
constexpr WeightTile weight_tile(int index, int tiles_per_expert) {
  const int padded = ceil_div(tiles_per_expert, kClusterSize) * kClusterSize;
  return {index / padded, index % padded};
}
constexpr int weight_tiles(int experts, int tiles_per_expert) {
  return experts * ceil_div(tiles_per_expert, kClusterSize) * kClusterSize;
}

// Width of a tile, 256 or 192, that wastes fewer columns of n; the wider one on a tie, it reads less per FLOP.
constexpr int block_n_for(int n) {
  const int waste_256 = ceil_div(n, 256) * 256 - n;
  const int waste_192 = ceil_div(n, 192) * 192 - n;
  // The narrower tile re-reads the row operand a third more often, so that it must save 4% of the columns.
  return waste_192 + n / 25 < waste_256 ? 192 : 256;
}

}  // namespace phalanx::kernels
