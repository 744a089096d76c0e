// Shared-memory barriers (mbarrier) that count arrivals and, for TMA, bytes.
#pragma once
#include "kernels/ptx/address.cuh"

namespace phalanx::kernels::ptx {

using Mbarrier = std::uint64_t;

__device__ inline void mbarrier_init(Mbarrier& barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals));
}

__device__ inline void mbarrier_arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Arrives at the barrier of the same name in block `rank` of the cluster.
__device__ inline void mbarrier_arrive_at(Mbarrier& barrier, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(shared_address(&barrier)),
      "r"(rank)
      : "memory");
}

// Arrives and announces `bytes` that TMA will still deliver in this phase.
__device__ inline void mbarrier_arrive_expect(Mbarrier& barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(bytes)
               : "memory");
}

// Blocks until the phase of this parity has completed. The large time hint lets the hardware sleep instead of polling.
__device__ inline void mbarrier_wait(Mbarrier& barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

// Makes initialised barriers visible to the cluster and to TMA.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace phalanx::kernels::ptx
