// stmatrix and ldmatrix: four 8x8 tiles of 16-bit elements between the registers of a warp and shared memory.
//
// Tile i is held in register i; lanes 8i..8i+7 give the 16-byte addresses of its rows.
#pragma once
#include "kernels/ptx/address.cuh"

namespace phalanx::kernels::ptx {

__device__ inline void store_matrix_x4(void* row, std::uint32_t r0, std::uint32_t r1, std::uint32_t r2,
                                       std::uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

__device__ inline void load_matrix_x4(const void* row, std::uint32_t& r0, std::uint32_t& r1,
                                      std::uint32_t& r2, std::uint32_t& r3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "r"(shared_address(row))
               : "memory");
}

// Two floats rounded to nearest bf16; `low` goes to the lower address.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline float low_bf16(std::uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ inline float high_bf16(std::uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }

}  // namespace phalanx::kernels::ptx
