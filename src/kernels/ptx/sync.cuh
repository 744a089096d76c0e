// Named barriers between part of a block's warps, the generic-to-async proxy fence, and register budgets.
#pragma once
#include <cstdint>

namespace phalanx::kernels::ptx {

// Waits until `threads` threads have arrived at or synced with barrier `id` (1..15; 0 is __syncthreads).
__device__ inline void named_barrier_sync(std::uint32_t id, std::uint32_t threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline void named_barrier_arrive(std::uint32_t id, std::uint32_t threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders this thread's earlier ordinary shared-memory writes before later reads by TMA or wgmma.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// True in exactly one lane of a full warp; the compiler knows that it is one.
__device__ inline bool elect_one() {
  std::uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// Registers per thread of the calling warpgroup from here on.
template <int kRegisters>
__device__ inline void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ inline void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace phalanx::kernels::ptx
