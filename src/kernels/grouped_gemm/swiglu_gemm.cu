// z = x[rows of e] W_e^T and a = silu(gate) up. A tile holds 128 gate columns and the 128 up columns that belong to them, so
// that a thread finds both halves of each element among its own accumulators.
#include "kernels/grouped_gemm/swiglu_gemm.h"
#include "kernels/grouped_gemm/varlen_m.cuh"
#include "kernels/swiglu/silu.cuh"

namespace phalanx::kernels {
namespace {

struct StoreSwiglu {
  static constexpr int kBlockN = 256;
  static constexpr bool kPingPong = false;
  static constexpr int kColumns = kBlockN / 2;  // of the intermediate width

  struct Params {
    CUtensorMap z_map;  // [M, 2, I]
    CUtensorMap a_map;  // [M, 1, I]
    __nv_bfloat16* z;
    __nv_bfloat16* a;
    int intermediate;
  };

  // The weight is seen as [2E, I, K]: slab 2e is the gate of expert e, slab 2e + 1 its up projection.
  template <ptx::Major kMajor>
  __device__ static Box weight_box(const CUtensorMap& map, int expert, int n, int box, int k) {
    constexpr int kHalfBoxes = kColumns / ptx::kBoxRows;
    return {&map, k, n * kColumns + box % kHalfBoxes * ptx::kBoxRows, 2 * expert + box / kHalfBoxes};
  }

  __device__ static void store(const Params& params, const float (&acc)[kBlockN / 2], int row, int rows,
                               int n, WarpStore& out) {
    const RowMatrix z{&params.z_map, params.z, params.intermediate, 2};
    const RowMatrix a{&params.a_map, params.a, params.intermediate, 1};
#pragma unroll
    for (int i = 0; i < kColumns / 64; ++i) {
      const int column = n * kColumns + i * 64;
      if (column < params.intermediate) {
        Chunk gate, up, activation;
        pack_chunk(acc + i * kChunkValues, gate);
        pack_chunk(acc + kBlockN / 4 + i * kChunkValues, up);
        out.store(gate, z, column, 0, row, rows);
        out.store(up, z, column, 1, row, rows);
#pragma unroll
        for (int word = 0; word < kChunkWords; ++word) {
          activation[word] =
              ptx::pack_bf16(silu(ptx::low_bf16(gate[word])).value * ptx::low_bf16(up[word]),
                             silu(ptx::high_bf16(gate[word])).value * ptx::high_bf16(up[word]));
        }
        out.store(activation, a, column, 0, row, rows);
      }
    }
  }
};

}  // namespace

void swiglu_gemm(const SwigluGemmParams& p, cudaStream_t stream) {
  using Problem = VarlenM<ptx::Major::kK, StoreSwiglu>;
  check_shape(p.groups, p.intermediate, p.k);
  if (p.groups.rows == 0) {
    return;
  }
  const CUtensorMap weight = load_map(p.weight, 2 * p.groups.experts, p.intermediate, p.k);
  auto params =
      varlen_m_params<Problem>(p.groups, p.x, weight, p.k, ceil_div(p.intermediate, StoreSwiglu::kColumns));
  params.epilogue = {store_map(p.z, p.groups.rows, 2, p.intermediate),
                     store_map(p.a, p.groups.rows, 1, p.intermediate), static_cast<__nv_bfloat16*>(p.z),
                     static_cast<__nv_bfloat16*>(p.a), p.intermediate};
  launch<Problem>(params, stream);
}

}  // namespace phalanx::kernels
