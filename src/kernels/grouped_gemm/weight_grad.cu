// dW_e = dy[rows of e]^T x[rows of e]: the sum runs over the rows of an expert.
#include "kernels/grouped_gemm/launch.cuh"

namespace phalanx::kernels {
namespace {

template <class Element, int kWidth>
struct WeightGrad {
  static constexpr ptx::Major kAMajor = ptx::Major::kMn;
  static constexpr ptx::Major kBMajor = ptx::Major::kMn;
  static constexpr int kBlockN = kWidth;
  static constexpr bool kRaggedK = true;
  static constexpr bool kPingPong = false;

  struct Params {
    CUtensorMap dy;
    CUtensorMap x;
    CUtensorMap dw;
    const int* expert_ends;
    int experts;
    int m_tiles;  // along the rows of dW: columns of dy
    int n_tiles;  // along the columns of dW: columns of x
    int k;        // columns of x
    bool accumulate;
  };

  struct Tile {
    int expert;
    int row;   // first row of the expert
    int rows;  // its rows
    int m;     // in tiles
    int n;
    int k_blocks;
    bool real;
  };

  __device__ static void prepare(const Params&, int*) {}

  __device__ static int tile_count(const Params& params, const int*) {
    return weight_tiles(params.experts, params.m_tiles * params.n_tiles);
  }

  __device__ static Tile tile(const Params& params, const int*, int index) {
    const int tiles = params.m_tiles * params.n_tiles;
    const WeightTile position = weight_tile(index, tiles);
    const bool real = position.index < tiles;
    const TileCoord coord = tile_in_expert(real ? position.index : tiles - 1, params.m_tiles, params.n_tiles);
    const int begin = first_row(params.expert_ends, position.expert);
    const int rows = params.expert_ends[position.expert] - begin;
    return {position.expert, begin, rows, coord.m, coord.n, ceil_div(rows, kBlockK), real};
  }

  __device__ static bool same_a(const Tile& a, const Tile& b) { return a.m == b.m; }
  __device__ static bool same_b(const Tile& a, const Tile& b) { return a.n == b.n; }
  __device__ static bool has_rows(const Tile& tile, int) { return tile.real; }

  __device__ static Box a_box(const Params& params, const Tile& tile, int box, int k) {
    return {&params.dy, tile.m * kBlockM + box * ptx::kBoxRows, tile.row + k * kBlockK, 0};
  }

  __device__ static Box b_box(const Params& params, const Tile& tile, int box, int k) {
    return {&params.x, tile.n * kBlockN + box * ptx::kBoxRows, tile.row + k * kBlockK, 0};
  }

  __device__ static void finish(const Params& params, const Tile& tile, int block, int warp,
                                const float (&acc)[kBlockN / 2], WarpStore& out) {
    if (params.accumulate && tile.k_blocks == 0) {
      return;
    }
    const int row = tile.m * kBlockM + block * 64 + warp * kSliceRows;
    constexpr int kColumns = 128 / sizeof(Element);
#pragma unroll
    for (int chunk = 0; chunk < kBlockN / kColumns; ++chunk) {
      const int column = tile.n * kBlockN + chunk * kColumns;
      if (column < params.k) {
        const float* values = acc + chunk * kColumns / 2;
        if constexpr (sizeof(Element) == 2) {
          out.write_bf16(values, params.dw, column, row, tile.expert, params.accumulate);
        } else {
          out.write_fp32(values, params.dw, column, row, tile.expert, params.accumulate);
        }
      }
    }
  }
};

template <class Element, int kBlockN>
void run(const GroupedGemmWeightGradParams& p, cudaStream_t stream) {
  using Problem = WeightGrad<Element, kBlockN>;
  typename Problem::Params params{};
  params.dy = load_map(p.dy, p.groups.rows, p.n);
  params.x = load_map(p.x, p.groups.rows, p.k);
  params.dw = make_tensor_map(p.dw, sizeof(Element) == 2 ? TensorMapType::kBf16 : TensorMapType::kFp32,
                              {p.k, p.n, p.groups.experts}, p.k, std::int64_t{p.n} * p.k, {kSliceRows, 1});
  params.expert_ends = p.groups.expert_ends;
  params.experts = p.groups.experts;
  params.m_tiles = ceil_div(p.n, kBlockM);
  params.n_tiles = ceil_div(p.k, kBlockN);
  params.k = p.k;
  params.accumulate = p.accumulate;
  launch<Problem>(params, stream);
}

template <class Element>
void run_width(const GroupedGemmWeightGradParams& p, cudaStream_t stream) {
  block_n_for(p.k) == 256 ? run<Element, 256>(p, stream) : run<Element, 192>(p, stream);
}

}  // namespace

void grouped_gemm_weight_grad(const GroupedGemmWeightGradParams& p, cudaStream_t stream) {
  check_shape(p.groups, p.n, p.k);
  p.dw_is_fp32 ? run_width<float>(p, stream) : run_width<__nv_bfloat16>(p, stream);
}

}  // namespace phalanx::kernels
