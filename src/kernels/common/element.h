// Element types of the memory-bound kernels: what a launcher's `element` field says about its untyped pointers.
#pragma once
#include <cstdint>

namespace phalanx::kernels {

enum class Element : std::uint8_t { kFp32, kBf16 };

}  // namespace phalanx::kernels
