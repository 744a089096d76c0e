// Element types as safetensors names them.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace phalanx {

enum class Dtype : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

const char* dtype_name(Dtype dtype);                          // "BF16"
std::optional<Dtype> dtype_from_name(std::string_view name);  // by safetensors' name
int dtype_bits(Dtype dtype);                                  // 4, 6, 8, 16, 32 or 64

}  // namespace phalanx
