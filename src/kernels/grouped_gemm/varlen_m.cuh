// Problems whose tiles are rows of one expert times columns of its weight. What the epilogue makes of them is its own.
#pragma once
#include "kernels/grouped_gemm/launch.cuh"

namespace phalanx::kernels {

// Warp 0 fills starts[e] = tiles before expert e.
__device__ inline void scan_tiles(const int* expert_ends, int experts, int n_tiles, int* starts) {
  const int lane = threadIdx.x % 32;
  int carry = 0;
  for (int base = 0; base < experts; base += 32) {
    const int e = base + lane;
    int tiles = e < experts ? ceil_div(expert_ends[e] - first_row(expert_ends, e), kBlockM) * n_tiles : 0;
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(~0u, tiles, step);
      tiles += lane >= step ? below : 0;
    }
    if (e < experts) {
      starts[e + 1] = carry + tiles;
    }
    carry += __shfl_sync(~0u, tiles, 31);
  }
  if (lane == 0) {
    starts[0] = 0;
  }
}

// Expert whose tiles include `index`, found by the whole warp.
__device__ inline int find_expert(const int* starts, int experts, int index) {
  int expert = 0;
  for (int base = 0; base < experts; base += 32) {
    const int e = base + static_cast<int>(threadIdx.x % 32);
    const unsigned before = __ballot_sync(~0u, e < experts && starts[e + 1] <= index);
    expert += __popc(before);
    if (before != ~0u) {
      break;
    }
  }
  return expert;
}

// x[rows of e] times W_e, kBlockN columns per tile; `Epilogue` stores.
template <ptx::Major kWeightMajor, class Epilogue>
struct VarlenM {
  static constexpr ptx::Major kAMajor = ptx::Major::kK;
  static constexpr ptx::Major kBMajor = kWeightMajor;
  static constexpr int kBlockN = Epilogue::kBlockN;
  static constexpr bool kRaggedK = false;
  static constexpr bool kPingPong = Epilogue::kPingPong;

  struct Params {
    CUtensorMap x;
    CUtensorMap weight;
    const int* expert_ends;
    int experts;
    int n_tiles;
    int k_blocks;
    typename Epilogue::Params epilogue;
  };

  struct Tile {
    int expert;
    int row;   // first
    int rows;  // valid, from `row`: 1..128, or 0 to keep step only
    int n;     // in tiles
    int k_blocks;
  };

  __device__ static void prepare(const Params& params, int* starts) {
    scan_tiles(params.expert_ends, params.experts, params.n_tiles, starts);
  }

  __device__ static int tile_count(const Params& params, const int* starts) { return starts[params.experts]; }

  __device__ static Tile tile(const Params& params, const int* starts, int index) {
    const int last = starts[params.experts] - 1;
    const int real = index < last ? index : last;
    const int expert = find_expert(starts, params.experts, real);
    const int begin = first_row(params.expert_ends, expert);
    const int rows = params.expert_ends[expert] - begin;
    const TileCoord coord = tile_in_expert(real - starts[expert], ceil_div(rows, kBlockM), params.n_tiles);
    const int left = rows - coord.m * kBlockM;
    const int valid = index > last ? 0 : left < kBlockM ? left : kBlockM;
    return {expert, begin + coord.m * kBlockM, valid, coord.n, params.k_blocks};
  }

  __device__ static bool same_a(const Tile& a, const Tile& b) { return a.row == b.row; }
  __device__ static bool same_b(const Tile& a, const Tile& b) { return a.expert == b.expert && a.n == b.n; }
  __device__ static bool has_rows(const Tile& tile, int block) { return block * 64 < tile.rows; }

  __device__ static Box a_box(const Params& params, const Tile& tile, int box, int k) {
    return {&params.x, k * kBlockK, tile.row + box * ptx::kBoxRows, 0};
  }

  __device__ static Box b_box(const Params& params, const Tile& tile, int box, int k) {
    return Epilogue::template weight_box<kWeightMajor>(params.weight, tile.expert, tile.n, box, k * kBlockK);
  }

  __device__ static void finish(const Params& params, const Tile& tile, int block, int warp,
                                const float (&acc)[kBlockN / 2], WarpStore& out) {
    const int offset = block * 64 + warp * kSliceRows;
    const int left = tile.rows - offset;
    if (left > 0) {
      Epilogue::store(params.epilogue, acc, tile.row + offset, left < kSliceRows ? left : kSliceRows, tile.n,
                      out);
    }
  }
};

// [rows, halves, columns] bf16, stored in boxes of 64 columns by 16 rows of one half.
inline CUtensorMap store_map(const void* base, int rows, int halves, int columns) {
  return make_tensor_map(base, TensorMapType::kBf16, {columns, halves, rows}, columns,
                         static_cast<std::int64_t>(halves) * columns, {1, kSliceRows});
}

// Fills what every problem of this kind has in common; the caller sets the epilogue's part and launches.
template <class Problem>
typename Problem::Params varlen_m_params(const ExpertRows& groups, const void* x, const CUtensorMap& weight,
                                         int k, int n_tiles) {
  typename Problem::Params params{};
  params.x = load_map(x, groups.rows, k);
  params.weight = weight;
  params.expert_ends = groups.expert_ends;
  params.experts = groups.experts;
  params.n_tiles = n_tiles;
  params.k_blocks = ceil_div(k, kBlockK);
  return params;
}

// Columns n kBlockN .. of W_e as they lie.
template <ptx::Major kMajor, int kBlockN>
__device__ Box plain_weight_box(const CUtensorMap& map, int expert, int n, int box, int k) {
  const int column = n * kBlockN + box * ptx::kBoxRows;
  return kMajor == ptx::Major::kK ? Box{&map, k, column, expert} : Box{&map, column, k, expert};
}

}  // namespace phalanx::kernels
