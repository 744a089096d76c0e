// A stable counting sort in three kernels: every block counts the experts of its choices; one block turns the counts into
// the first row of each (block, expert); every block then ranks its choices, in their order, and places them.
#include "kernels/common/launch.cuh"
#include "kernels/permute/permute.h"

namespace phalanx::kernels {
namespace {

constexpr int kThreads = 1024;  // and choices of a block
constexpr int kWarps = kThreads / 32;
constexpr int kMaxExperts = 512;

__device__ std::int64_t choice_of_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

// block_counts [blocks, E]
__global__ void __launch_bounds__(kThreads) count_kernel(GroupByExpertParams p) {
  __shared__ int counts[kMaxExperts];
  for (int e = threadIdx.x; e < p.experts; e += kThreads) {
    counts[e] = 0;
  }
  __syncthreads();
  if (const std::int64_t choice = choice_of_thread(); choice < p.choice_count) {
    const int expert = p.indices[choice];
    if (expert < 0 || expert >= p.experts) {
      __trap();
    }
    atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < p.experts; e += kThreads) {
    p.workspace[static_cast<std::int64_t>(blockIdx.x) * p.experts + e] = counts[e];
  }
}

// One block, one thread per expert: block_counts become first rows, in place.
__global__ void __launch_bounds__(kMaxExperts) scan_kernel(GroupByExpertParams p, int blocks) {
  __shared__ int sums[kMaxExperts];
  const int expert = threadIdx.x;
  const bool active = expert < p.experts;
  int total = 0;
  if (active) {
#pragma unroll 8
    for (int b = 0; b < blocks; ++b) {
      total += p.workspace[static_cast<std::int64_t>(b) * p.experts + expert];
    }
  }
  sums[expert] = total;
  __syncthreads();
  for (int distance = 1; distance < kMaxExperts; distance *= 2) {
    const int before = expert >= distance ? sums[expert - distance] : 0;
    __syncthreads();
    sums[expert] += before;
    __syncthreads();
  }
  if (!active) {
    return;
  }
  p.counts[expert] = total;
  p.ends[expert] = sums[expert];
  int row = sums[expert] - total;
#pragma unroll 8
  for (int b = 0; b < blocks; ++b) {
    std::int32_t& slot = p.workspace[static_cast<std::int64_t>(b) * p.experts + expert];
    const int count = slot;
    slot = row;
    row += count;
  }
}

__global__ void __launch_bounds__(kThreads) place_kernel(GroupByExpertParams p) {
  __shared__ std::uint16_t
      before[kWarps][kMaxExperts];  // choices of an expert in a warp, then in the warps before it
  for (int i = threadIdx.x; i < kWarps * kMaxExperts; i += kThreads) {
    before[i / kMaxExperts][i % kMaxExperts] = 0;
  }
  __syncthreads();
  const std::int64_t choice = choice_of_thread();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int expert = choice < p.choice_count ? p.indices[choice] : -1;
  const unsigned same = __match_any_sync(0xffffffffu, expert);
  const int rank = __popc(same & ((1u << lane) - 1));
  if (expert >= 0 && rank == 0) {
    before[warp][expert] = static_cast<std::uint16_t>(__popc(same));
  }
  __syncthreads();
  for (int e = threadIdx.x; e < p.experts; e += kThreads) {
    int sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      const int count = before[w][e];
      before[w][e] = static_cast<std::uint16_t>(sum);
      sum += count;
    }
  }
  __syncthreads();
  if (expert >= 0) {
    const int first = p.workspace[static_cast<std::int64_t>(blockIdx.x) * p.experts + expert];
    const int row = first + before[warp][expert] + rank;
    p.choices[row] = static_cast<std::int32_t>(choice);
    p.rows[choice] = row;
  }
}

}  // namespace

std::int64_t group_by_expert_workspace(std::int64_t choice_count, int experts) {
  return blocks_for(choice_count, kThreads) * experts;
}

void group_by_expert(const GroupByExpertParams& p, cudaStream_t stream) {
  PHALANX_CHECK(p.experts >= 1 && p.experts <= kMaxExperts, ConfigError, "group_by_expert: ", p.experts,
                " experts; on a GPU there can be 1 to ", kMaxExperts);
  const auto blocks = static_cast<int>(blocks_for(p.choice_count, kThreads));
  if (blocks > 0) {
    count_kernel<<<blocks, kThreads, 0, stream>>>(p);
  }
  scan_kernel<<<1, kMaxExperts, 0, stream>>>(p, blocks);
  if (blocks > 0) {
    place_kernel<<<blocks, kThreads, 0, stream>>>(p);
  }
  check_launch("group_by_expert");
}

}  // namespace phalanx::kernels
