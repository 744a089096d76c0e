#include "core/dtype.h"

#include <array>

namespace phalanx {
namespace {

struct DtypeInfo {
  const char* name;
  int bits;
};

// In the order of `Dtype`.
constexpr std::array<DtypeInfo, 22> kDtypes = {{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};
static_assert(kDtypes.size() == static_cast<std::size_t>(Dtype::kU64) + 1);

const DtypeInfo& info(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)]; }

}  // namespace

const char* dtype_name(Dtype dtype) { return info(dtype).name; }

int dtype_bits(Dtype dtype) { return info(dtype).bits; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (name == kDtypes[i].name) {
      return static_cast<Dtype>(i);
    }
  }
  return std::nullopt;
}

}  // namespace phalanx
