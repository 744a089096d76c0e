// y[rows of e] = x[rows of e] W_e, both weight layouts.
#include "kernels/grouped_gemm/launch.cuh"
#include "kernels/grouped_gemm/varlen_m.cuh"

namespace phalanx::kernels {
namespace {

template <int kWidth>
struct StoreRows {
  static constexpr int kBlockN = kWidth;

  struct Params {
    CUtensorMap y;
    __nv_bfloat16* base;
    int n;
  };

  template <ptx::Major kMajor>
  __device__ static Box weight_box(const CUtensorMap& map, int expert, int n, int box, int k) {
    return plain_weight_box<kMajor, kBlockN>(map, expert, n, box, k);
  }

  __device__ static void store(const Params& params, const float (&acc)[kBlockN / 2], int row, int rows, int n,
                               WarpStore& out) {
#pragma unroll
    for (int chunk = 0; chunk < kBlockN / 64; ++chunk) {
      const int column = n * kBlockN + chunk * 64;
      if (column < params.n) {
        const std::int64_t first = static_cast<std::int64_t>(row) * params.n + column;
        out.store_bf16(acc + chunk * kChunkValues, params.y, column, row, 0,
                       {params.base + first, params.n, params.n - column, rows});
      }
    }
  }
};

template <ptx::Major kMajor, int kBlockN>
void run(const GroupedGemmParams& p, cudaStream_t stream) {
  using Problem = VarlenM<kMajor, StoreRows<kBlockN>>;
  const int rows = p.groups.rows;
  typename Problem::Params params{};
  params.x = load_map(p.x, rows, p.k);
  params.weight = kMajor == ptx::Major::kK ? load_map(p.weight, p.groups.experts, p.n, p.k)
                                           : load_map(p.weight, p.groups.experts, p.k, p.n);
  params.expert_ends = p.groups.expert_ends;
  params.experts = p.groups.experts;
  params.n_tiles = ceil_div(p.n, kBlockN);
  params.k_blocks = ceil_div(p.k, kBlockK);
  params.epilogue = {make_tensor_map(p.y, TensorMapType::kBf16, {p.n, rows, 1}, p.n, std::int64_t{rows} * p.n,
                                     {kSliceRows, 1}),
                     static_cast<__nv_bfloat16*>(p.y), p.n};
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
  p.layout == WeightLayout::kOutIn ? run_width<ptx::Major::kK>(p, stream) : run_width<ptx::Major::kMn>(p, stream);
}

}  // namespace phalanx::kernels
