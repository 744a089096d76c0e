// The skeleton of every grouped product: a persistent, warp-specialised GEMM kernel (README.md draws it).
//
// A `Problem` says what a tile is, where its operands lie and what becomes of the accumulators:
//   kAMajor, kBMajor, kBlockN, kRaggedK
//   kPingPong                                    each consumer group works on tiles of its own, in turns, so that one
//                                                group's long epilogue hides behind the other's products; else both
//                                                groups share a tile, 64 rows each, which may then be twice as wide
//   Params, Tile{..., k_blocks}
//   prepare(params, starts)                      fills shared `starts` before the first tile (may do nothing)
//   tile_count(params, starts)                   tiles of all experts, a multiple of kClusterSize or rounded up here
//   tile(params, starts, index)                  called by whole warps
//   same_a(tile, other), same_b(tile, other)     do two tiles read the same operand?
//   a_box / b_box(params, tile, box, k_block)    map and coordinates of a 64x64 box
//   has_rows(tile, block)                        does block 0 or 1 of 64 rows hold any?
//   finish(params, tile, block, warp, acc, out)  stores one warp's 16 rows of a block
#pragma once
#include "kernels/grouped_gemm/scheduler.h"
#include "kernels/grouped_gemm/warp_store.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace phalanx::kernels {

inline constexpr int kStages = 4;
inline constexpr int kConsumerGroups = 2;
inline constexpr int kConsumerWarps = 4 * kConsumerGroups;
inline constexpr int kThreads = 128 * (1 + kConsumerGroups);
inline constexpr int kMaskWarps = 3;
inline constexpr int kABoxes = kBlockM / ptx::kBoxRows;
inline constexpr std::uint32_t kTurnBarrier = 1;  // and the next: one for each group (kPingPong)
// Clusters begin up to 7 times this late, so that the stores of all multiprocessors do not fall into the same moments.
inline constexpr int kStaggerClocks = 1100;

struct Box {
  const CUtensorMap* map;
  int c0, c1, c2;
};

template <int kBlockN>
struct alignas(1024) SharedMemory {
  static constexpr int kBBoxes = kBlockN / ptx::kBoxRows;
  static constexpr int kStageBytes = (kABoxes + kBBoxes) * ptx::kBoxBytes;

  std::uint8_t a[kStages][kABoxes][ptx::kBoxBytes];
  std::uint8_t b[kStages][kBBoxes][ptx::kBoxBytes];
  std::uint8_t store[kConsumerWarps][kStoreBuffers * kStoreBytes];
  ptx::Mbarrier full[kStages];      // TMA has delivered the stage
  ptx::Mbarrier empty[kStages];     // every consumer warp of the cluster is done with it
  ptx::Mbarrier unmasked[kStages];  // TMA was told to deliver a stage that needs masking (kRaggedK)
  ptx::Mbarrier masked[kStages];    // rows past the expert's end are zero (kRaggedK)
  int starts[kMaxExperts + 1];      // first tile of each expert
};

// Position in the ring of stages.
struct Stage {
  int index = 0;
  std::uint32_t phase = 0;
  __device__ void advance(int count = 1) {
    index += count;
    phase ^= (index / kStages) & 1;
    index %= kStages;
  }
};

template <class Problem>
class Kernel {
  using Params = typename Problem::Params;
  using Tile = typename Problem::Tile;
  using Memory = SharedMemory<Problem::kBlockN>;
  // Blocks of 64 rows that one group accumulates; warps of a block that read a stage.
  static constexpr int kRowBlocks = Problem::kPingPong ? 2 : 1;
  static constexpr int kReaders = Problem::kPingPong ? 4 : kConsumerWarps;
  using Accumulators = float[kRowBlocks][Problem::kBlockN / 2];

 public:
  __device__ Kernel(const Params& params, Memory& memory)
      : params_(params),
        memory_(memory),
        warp_(__shfl_sync(~0u, threadIdx.x / 32, 0)),
        lane_(threadIdx.x % 32),
        rank_(ptx::cluster_rank()) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        ptx::mbarrier_init(memory_.full[s], 1);
        ptx::mbarrier_init(memory_.empty[s], kReaders * kClusterSize);
        ptx::mbarrier_init(memory_.unmasked[s], 1);
        ptx::mbarrier_init(memory_.masked[s], kMaskWarps);
      }
      ptx::fence_mbarrier_init();
    }
    if (warp_ == 0) {
      Problem::prepare(params_, memory_.starts);
    }
    ptx::cluster_sync();
    // Blocks of a cluster take the same number of tiles; the surplus one keeps step with its neighbour and stores nothing.
    tiles_ = ceil_div(Problem::tile_count(params_, memory_.starts), kClusterSize) * kClusterSize;

    if (warp_ < 4) {
      ptx::decrease_registers<40>();
      if (warp_ == 0) {
        produce();
      } else if (Problem::kRaggedK) {
        mask();
      }
    } else {
      ptx::increase_registers<232>();
      consume();
    }
    ptx::cluster_sync();  // a neighbour may still write to this block's shared memory
  }

 private:
  __device__ Tile tile(int index) const { return Problem::tile(params_, memory_.starts, index); }

  // One warp: fills stages with the tiles' operands, half of a shared operand per block.
  __device__ void produce() {
    Stage stage;
    stagger();
    for (int index = blockIdx.x; index < tiles_; index += gridDim.x) {
      const Tile own = tile(index);
      const Tile neighbour = tile(index ^ 1);
      if (ptx::elect_one()) {
        fill(own, Problem::same_a(own, neighbour), Problem::same_b(own, neighbour), stage);
      }
      __syncwarp();
      stage.advance(own.k_blocks);
    }
  }

  __device__ void stagger() const {
    if (tiles_ >= 8 * static_cast<int>(gridDim.x)) {
      const long long begin = clock64();
      while (clock64() - begin < kStaggerClocks * (blockIdx.x / kClusterSize % 8)) {
      }
    }
  }

  __device__ void fill(const Tile& own, bool share_a, bool share_b, Stage stage) {
    for (int k = 0; k < own.k_blocks; ++k, stage.advance()) {
      ptx::mbarrier_wait(memory_.empty[stage.index], stage.phase ^ 1);
      ptx::mbarrier_arrive_expect(memory_.full[stage.index], Memory::kStageBytes);
      for (int box = 0; box < kABoxes; ++box) {
        load(memory_.a[stage.index][box], Problem::a_box(params_, own, box, k), stage, box, share_a);
      }
      for (int box = 0; box < Memory::kBBoxes; ++box) {
        load(memory_.b[stage.index][box], Problem::b_box(params_, own, box, k), stage, box, share_b);
      }
      if (needs_mask(own, k)) {
        ptx::mbarrier_arrive(memory_.unmasked[stage.index]);
      }
    }
  }

  // Is stage k the expert's last, and partly filled with rows of the next expert?
  __device__ static bool needs_mask(const Tile& own, int k) {
    if constexpr (Problem::kRaggedK) {
      return k == own.k_blocks - 1 && own.rows % kBlockK != 0;
    } else {
      return false;
    }
  }

  __device__ void load(void* destination, const Box& box, const Stage& stage, int number, bool shared) {
    ptx::Mbarrier& full = memory_.full[stage.index];
    if (!shared) {
      ptx::tma_load(destination, *box.map, box.c0, box.c1, box.c2, full);
    } else if (number % kClusterSize == static_cast<int>(rank_)) {
      ptx::tma_load_multicast(destination, *box.map, box.c0, box.c1, box.c2, full, (1 << kClusterSize) - 1);
    }
  }

  // Three warps, when K counts an expert's rows: zero what the expert's last stage holds of the next expert's rows.
  __device__ void mask() {
    Stage stage;
    std::uint32_t phases = 0;
    for (int index = blockIdx.x; index < tiles_; index += gridDim.x) {
      const Tile own = tile(index);
      if (needs_mask(own, own.k_blocks - 1)) {
        Stage last = stage;
        last.advance(own.k_blocks - 1);
        // The producer's word that the stage is in this round: only then does the parity of `full` mean this round.
        wait_toggling(memory_.unmasked, last.index, phases);
        ptx::mbarrier_wait(memory_.full[last.index], last.phase);
        zero_rows(last.index, own.rows % kBlockK);
        ptx::fence_proxy_async();
        __syncwarp();
        if (lane_ == 0) {
          ptx::mbarrier_arrive(memory_.masked[last.index]);
        }
      }
      stage.advance(own.k_blocks);
    }
  }

  // From row `first` to the end of the stage.
  __device__ void zero_rows(int stage, int first) {
    for (int box = warp_ - 1; box < kABoxes + Memory::kBBoxes; box += kMaskWarps) {
      std::uint8_t* rows = box < kABoxes ? memory_.a[stage][box] : memory_.b[stage][box - kABoxes];
      for (int byte = first * 128 + lane_ * 16; byte < ptx::kBoxBytes; byte += 32 * 16) {
        *reinterpret_cast<uint4*>(rows + byte) = uint4{};
      }
    }
  }

  // Waits on the barrier of a stage that is not used in every round; bit s of `phases` is its parity.
  __device__ static void wait_toggling(ptx::Mbarrier (&barriers)[kStages], int stage, std::uint32_t& phases) {
    ptx::mbarrier_wait(barriers[stage], (phases >> stage) & 1);
    phases ^= 1u << stage;
  }

  // Two warpgroups: products, then the epilogue.
  __device__ void consume() {
    const int group = warp_ / 4 - 1;
    WarpStore out(memory_.store[warp_ - 4]);
    Stage stage;
    int turn = 0;
    if (Problem::kPingPong && group == 1) {
      ptx::named_barrier_arrive(kTurnBarrier, 256);  // group 0 begins
    }
    for (int index = blockIdx.x; index < tiles_; index += gridDim.x, turn ^= 1) {
      const Tile own = tile(index);
      if (Problem::kPingPong && turn != group) {
        stage.advance(own.k_blocks);
        continue;
      }
      if (Problem::kPingPong) {
        ptx::named_barrier_sync(kTurnBarrier + group, 256);
      }
      const int first_block = Problem::kPingPong ? 0 : group;
      if (Problem::has_rows(own, first_block)) {
        Accumulators acc;
        multiply(own, group, stage, acc);
#pragma unroll
        for (int block = 0; block < kRowBlocks; ++block) {
          Problem::finish(params_, own, first_block + block, warp_ % 4, acc[block], out);
        }
      } else {
        skip(own, group, stage);
      }
    }
    out.finish();
  }

  __device__ void multiply(const Tile& own, int group, Stage& stage, Accumulators& acc) {
    if (Problem::kRaggedK && own.k_blocks == 0) {
#pragma unroll
      for (float& value : acc[0]) {
        value = 0;
      }
    }
    const std::uint32_t a = ptx::descriptor_address(memory_.a[0][Problem::kPingPong ? 0 : group]);
    const std::uint32_t b = ptx::descriptor_address(memory_.b[0]);
    int previous = -1;
    for (int k = 0; k < own.k_blocks; ++k, stage.advance()) {
      wait_full(own, k, stage);
      const std::uint32_t a_stage = a + stage.index * (sizeof(memory_.a[0]) >> 4);
      const std::uint32_t b_stage = b + stage.index * (sizeof(memory_.b[0]) >> 4);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kBlockK / 16; ++step) {
#pragma unroll
        for (int block = 0; block < kRowBlocks; ++block) {
          ptx::Wgmma<Problem::kBlockN>::template issue<Problem::kAMajor, Problem::kBMajor>(
              acc[block],
              ptx::operand_descriptor<Problem::kAMajor>(a_stage + block * (ptx::kBoxBytes >> 4), step),
              ptx::operand_descriptor<Problem::kBMajor>(b_stage, step), k != 0 || step != 0);
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (previous >= 0) {
        release(previous);
      }
      previous = stage.index;
      pass_turn(own, group, k);
    }
    ptx::wgmma_wait<0>();
    if (previous >= 0) {
      release(previous);
    }
  }

  __device__ void wait_full(const Tile& own, int k, const Stage& stage) {
    ptx::mbarrier_wait(memory_.full[stage.index], stage.phase);
    if (needs_mask(own, k)) {
      wait_toggling(memory_.masked, stage.index, masked_phases_);
    }
  }

  __device__ void skip(const Tile& own, int group, Stage& stage) {
    for (int k = 0; k < own.k_blocks; ++k, stage.advance()) {
      wait_full(own, k, stage);
      release(stage.index);
      pass_turn(own, group, k);
    }
  }

  // In ping-pong, a group may look at a stage only when the other is done waiting for its own: the parity of `full` tells
  // a round from the next, not from the one after. Called by a group after it has issued stage k.
  __device__ static void pass_turn(const Tile& own, int group, int k) {
    if (Problem::kPingPong && k == own.k_blocks - 1) {
      ptx::named_barrier_arrive(kTurnBarrier + 1 - group, 256);
    }
  }

  __device__ void release(int stage) {
    if (lane_ < kClusterSize) {
      ptx::mbarrier_arrive_at(memory_.empty[stage], lane_);
    }
  }

  const Params& params_;
  Memory& memory_;
  int warp_;
  int lane_;
  std::uint32_t rank_;
  int tiles_ = 0;
  std::uint32_t masked_phases_ = 0;
};

template <class Problem>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kClusterSize, 1, 1)
    grouped_gemm_kernel(const __grid_constant__ typename Problem::Params params) {
  extern __shared__ __align__(1024) std::uint8_t bytes[];
  Kernel<Problem>(params, *reinterpret_cast<SharedMemory<Problem::kBlockN>*>(bytes)).run();
}

}  // namespace phalanx::kernels
