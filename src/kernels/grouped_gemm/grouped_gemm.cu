// y[rows of e] = x[rows of e] W_e, both weight layouts.
#include "kernels/grouped_gemm/varlen_m.cuh"

namespace phalanx::kernels {
namespace {

template <int kWidth>
struct StoreRows {
  static constexpr int kBlockN = kWidth;
  static constexpr bool kPingPong = false;

  struct Params {
    CUtensorMap map;
    __nv_bfloat16* y;
    int n;
  };

  template <ptx::Major kMajor>
  __device__ static Box weight_box(const CUtensorMap& map, int expert, int n, int box, int k) {
    return plain_weight_box<kMajor, kBlockN>(map, expert, n, box, k);
  }

  __device__ static void store(const Params& params, const float (&acc)[kBlockN / 2], int row, int rows,
                               int n, WarpStore& out) {
    const RowMatrix y{&params.map, params.y, params.n, 1};
#pragma unroll
    for (int i = 0; i < kBlockN / 64; ++i) {
      const int column = n * kBlockN + i * 64;
      if (column < params.n) {
        Chunk chunk;
        pack_chunk(acc + i * kChunkValues, chunk);
        out.store(chunk, y, column, 0, row, rows);
      }
    }
  }
};

template <ptx::Major kMajor, int kBlockN>
void run(const GroupedGemmParams& p, cudaStream_t stream) {
  using Problem = VarlenM<kMajor, StoreRows<kBlockN>>;
  const CUtensorMap weight = kMajor == ptx::Major::kK ? load_map(p.weight, p.groups.experts, p.n, p.k)
                                                      : load_map(p.weight, p.groups.experts, p.k, p.n);
  auto params = varlen_m_params<Problem>(p.groups, p.x, weight, p.k, ceil_div(p.n, kBlockN));
  params.epilogue = {store_map(p.y, p.groups.rows, 1, p.n), static_cast<__nv_bfloat16*>(p.y), p.n};
  launch<Problem>(params, stream);
}

template <ptx::Major kMajor>
void run_width(const GroupedGemmParams& p, cudaStream_t stream) {
  block_n_for(p.n) == 256 ? run<kMajor, 256>(p, stream) : run<kMajor, 192>(p, stream);
}

}  // namespace

void grouped_gemm(const GroupedGemmParams& p, cudaStream_t stream) {
  check_shape(p.groups, p.n, p.k);
  if (p.groups.rows == 0) {
    return;
  }
  p.layout == WeightLayout::kOutIn ? run_width<ptx::Major::kK>(p, stream)
                                   : run_width<ptx::Major::kMn>(p, stream);
}

}  // namespace phalanx::kernels
