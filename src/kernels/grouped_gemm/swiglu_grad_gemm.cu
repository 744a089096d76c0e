// da' = dy[rows of e] W_e, turned at once into dz, s a and the summands of the router's gradient: neither da' nor a nor
// the output of the expert ever lies in memory.
#include "kernels/grouped_gemm/swiglu_gemm.h"
#include "kernels/grouped_gemm/varlen_m.cuh"
#include "kernels/swiglu/silu.cuh"

namespace phalanx::kernels {
namespace {

struct StoreSwigluGrad {
  static constexpr int kBlockN = 128;
  static constexpr bool kPingPong = true;

  struct Params {
    CUtensorMap dz_map;  // [M, 2, I]
    CUtensorMap a_map;   // [M, 1, I]
    const __nv_bfloat16* z;
    const float* scale;
    __nv_bfloat16* dz;
    __nv_bfloat16* scaled_a;
    float* ds_partials;
    int intermediate;
    int n_tiles;
  };

  template <ptx::Major kMajor>
  __device__ static Box weight_box(const CUtensorMap& map, int expert, int n, int box, int k) {
    return plain_weight_box<kMajor, kBlockN>(map, expert, n, box, k);
  }

  __device__ static void store(const Params& params, const float (&acc)[kBlockN / 2], int row, int rows,
                               int n, WarpStore& out) {
    const int lane = threadIdx.x % 32;
    const RowMatrix dz{&params.dz_map, params.dz, params.intermediate, 2};
    const RowMatrix a{&params.a_map, params.scaled_a, params.intermediate, 1};
    const int upper = accumulator_row(lane, 0);
    const int lower = accumulator_row(lane, 2);
    const float scale[2] = {upper < rows ? params.scale[row + upper] : 0.0f,
                            lower < rows ? params.scale[row + lower] : 0.0f};
    float ds[2] = {0.0f, 0.0f};
    uint4 gate_granules[4], up_granules[4];
    fetch(params, n * kBlockN, 0, row, rows, gate_granules);
    fetch(params, n * kBlockN, 1, row, rows, up_granules);
#pragma unroll
    for (int i = 0; i < kBlockN / 64; ++i) {
      const int column = n * kBlockN + i * 64;
      if (column < params.intermediate) {
        Chunk gate, up, scaled;
        out.exchange(gate_granules, gate);
        out.exchange(up_granules, up);
        differentiate(acc + i * kChunkValues, scale, gate, up, scaled, ds);
        out.store(gate, dz, column, 0, row, rows);
        fetch(params, column + 64, 0, row, rows, gate_granules);  // its latency hides behind the other stores
        out.store(up, dz, column, 1, row, rows);
        fetch(params, column + 64, 1, row, rows, up_granules);
        out.store(scaled, a, column, 0, row, rows);
      }
    }
    store_ds(params, ds, row, rows, n);
  }

 private:
  // This lane's part of 64 columns of one half of z; zeros outside the matrix or the expert.
  __device__ static void fetch(const Params& params, int column, int half, int row, int rows,
                               uint4 (&granules)[4]) {
    const int lane = threadIdx.x % 32;
    const int first = column + lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = lane / 8 + 4 * i;
      const std::int64_t line = static_cast<std::int64_t>(row + r) * 2 + half;
      const auto* source = reinterpret_cast<const uint4*>(params.z + line * params.intermediate + first);
      granules[i] = r < rows && first < params.intermediate ? *source : uint4{};
    }
  }

  // Replaces gate and up by their gradients.
  __device__ static void differentiate(const float* da, const float (&scale)[2], Chunk& gate, Chunk& up,
                                       Chunk& scaled_a, float (&ds)[2]) {
#pragma unroll
    for (int word = 0; word < kChunkWords; ++word) {
      const int half = word % 2;  // word 2j holds the upper row of column block j, word 2j + 1 the lower
      const float s = scale[half];
      const float g[2] = {ptx::low_bf16(gate[word]), ptx::high_bf16(gate[word])};
      const float u[2] = {ptx::low_bf16(up[word]), ptx::high_bf16(up[word])};
      const Silu f[2] = {silu(g[0]), silu(g[1])};
      const float d[2] = {da[2 * word], da[2 * word + 1]};
      const std::uint32_t a = ptx::pack_bf16(f[0].value * u[0], f[1].value * u[1]);  // as forward rounded it
      ds[half] += d[0] * ptx::low_bf16(a);
      ds[half] += d[1] * ptx::high_bf16(a);
      scaled_a[word] = ptx::pack_bf16(s * ptx::low_bf16(a), s * ptx::high_bf16(a));
      gate[word] = ptx::pack_bf16(s * d[0] * u[0] * f[0].slope, s * d[1] * u[1] * f[1].slope);
      up[word] = ptx::pack_bf16(s * d[0] * f[0].value, s * d[1] * f[1].value);
    }
  }

  // The four lanes of a row add their columns in a fixed order.
  __device__ static void store_ds(const Params& params, float (&ds)[2], int row, int rows, int n) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ds[half] += __shfl_xor_sync(~0u, ds[half], 1);
      ds[half] += __shfl_xor_sync(~0u, ds[half], 2);
      const int r = accumulator_row(lane, 2 * half);
      if (lane % 4 == 0 && r < rows) {
        params.ds_partials[static_cast<std::int64_t>(row + r) * params.n_tiles + n] = ds[half];
      }
    }
  }
};

}  // namespace

int swiglu_grad_partials(int intermediate) { return ceil_div(intermediate, StoreSwigluGrad::kBlockN); }

void swiglu_grad_gemm(const SwigluGradGemmParams& p, cudaStream_t stream) {
  using Problem = VarlenM<ptx::Major::kMn, StoreSwigluGrad>;
  check_shape(p.groups, p.intermediate, p.hidden);
  if (p.groups.rows == 0) {
    return;
  }
  const int n_tiles = swiglu_grad_partials(p.intermediate);
  const CUtensorMap weight = load_map(p.weight, p.groups.experts, p.hidden, p.intermediate);
  auto params = varlen_m_params<Problem>(p.groups, p.dy, weight, p.hidden, n_tiles);
  params.epilogue = {store_map(p.dz, p.groups.rows, 2, p.intermediate),
                     store_map(p.scaled_a, p.groups.rows, 1, p.intermediate),
                     static_cast<const __nv_bfloat16*>(p.z),
                     p.scale,
                     static_cast<__nv_bfloat16*>(p.dz),
                     static_cast<__nv_bfloat16*>(p.scaled_a),
                     p.ds_partials,
                     p.intermediate,
                     n_tiles};
  launch<Problem>(params, stream);
}

}  // namespace phalanx::kernels
