// Tensor memory accelerator: whole boxes between tensors described by a CUtensorMap and shared memory.
//
// All maps here have three dimensions, innermost first. What lies outside the tensor reads as zero and is not written.
#pragma once
#include "kernels/ptx/address.cuh"
#include "kernels/ptx/mbarrier.cuh"

#include <cuda.h>

namespace phalanx::kernels::ptx {

// Box at (c0, c1, c2) -> this block's shared memory; its bytes are counted by `barrier`.
__device__ inline void tma_load(void* destination, const CUtensorMap& map, int c0, int c1, int c2,
                                Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4}], [%5];" ::"r"(shared_address(destination)),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(shared_address(&barrier))
      : "memory");
}

// The same into every block of the cluster named in `block_mask`, at the same shared address and barrier.
__device__ inline void tma_load_multicast(void* destination, const CUtensorMap& map, int c0, int c1, int c2,
                                          Mbarrier& barrier, std::uint16_t block_mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(destination)),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(shared_address(&barrier)), "h"(block_mask)
      : "memory");
}

__device__ inline void tma_store(const CUtensorMap& map, const void* source, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
      "r"(shared_address(source)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

// Adds the box to the tensor in the tensor's own element type.
__device__ inline void tma_add(const CUtensorMap& map, const void* source, int c0, int c1, int c2) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
          &map),
      "r"(shared_address(source)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

__device__ inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until all but the latest `kPending` committed stores have read their shared memory.
template <int kPending>
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Until every committed store is complete.
__device__ inline void tma_store_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace phalanx::kernels::ptx
