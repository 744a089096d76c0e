#include "core/convert.h"

#include "core/error.h"

#include <bit>
#include <cstdint>
#include <cstring>

namespace phalanx {
namespace {

struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

float widen(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

float widen(F16 x) {
  const std::uint32_t sign = (x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // infinity, NaN with its payload
    return std::bit_cast<float>(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  }
  if (magnitude < 0x0400u) {  // zero and subnormal numbers, in units of 2^-24
    return std::bit_cast<float>(sign |
                                std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
  }
  return std::bit_cast<float>(sign | ((magnitude + (112u << 10)) << 13));  // exponents: bias 15 to bias 127
}

float widen(float x) { return x; }

Bf16 narrow_to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto upper = static_cast<std::uint16_t>(bits >> 16);
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  const bool payload_lost = (upper & 0x7Fu) == 0;  // it would turn into infinity
  const auto kept_nan = static_cast<std::uint16_t>(payload_lost ? upper | 0x40u : upper);
  const auto rounded = static_cast<std::uint16_t>((bits + 0x7FFFu + (upper & 1u)) >> 16);
  return {nan ? kept_nan : rounded};
}

F16 narrow_to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    const std::uint32_t payload = (magnitude >> 13) & 0x3FFu;
    return {static_cast<std::uint16_t>(sign | 0x7C00u | (payload != 0 ? payload : 0x200u))};
  }
  if (magnitude >= std::bit_cast<std::uint32_t>(65520.0f)) {  // rounds beyond the largest number, 65504
    return {static_cast<std::uint16_t>(sign | 0x7C00u)};
  }
  if (magnitude < std::bit_cast<std::uint32_t>(0x1p-14f)) {
    // Adding 0.5 leaves the subnormal number, in units of 2^-24, rounded in the low bits of the sum.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<std::uint16_t>(
        sign | (std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0.5f)))};
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112u << 10)))};
}

void store(float x, Bf16* to) { *to = narrow_to_bf16(x); }
void store(float x, F16* to) { *to = narrow_to_f16(x); }
void store(float x, float* to) { *to = x; }
void store(float x, double* to) { *to = x; }

template <class From, class To>
void convert(const void* source, void* destination, std::size_t count) {
  // Through memcpy: a tensor in a file is aligned to 8 bytes at most, and staging to nothing.
  const auto* from = static_cast<const unsigned char*>(source);
  auto* to = static_cast<unsigned char*>(destination);
  for (std::size_t i = 0; i < count; ++i) {
    From x;
    To y;
    std::memcpy(&x, from + i * sizeof(From), sizeof(From));
    if constexpr (std::is_same_v<From, double>) {
      y = static_cast<To>(x);
    } else {
      store(widen(x), &y);
    }
    std::memcpy(to + i * sizeof(To), &y, sizeof(To));
  }
}

using Conversion = void (*)(const void*, void*, std::size_t);

template <class From>
Conversion conversion_from(Dtype to) {
  switch (to) {
    case Dtype::kBF16:
      return convert<From, Bf16>;
    case Dtype::kF16:
      return convert<From, F16>;
    case Dtype::kF32:
      return convert<From, float>;
    case Dtype::kF64:
      return convert<From, double>;
    default:
      return nullptr;
  }
}

Conversion find_conversion(Dtype from, Dtype to) {
  switch (from) {
    case Dtype::kBF16:
      return conversion_from<Bf16>(to);
    case Dtype::kF16:
      return conversion_from<F16>(to);
    case Dtype::kF32:
      return conversion_from<float>(to);
    // To 16 bits it would round twice, by way of F32.
    case Dtype::kF64:
      return to == Dtype::kF32 ? convert<double, float> : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace

bool can_convert(Dtype from, Dtype to) { return from == to || find_conversion(from, to) != nullptr; }

void convert_elements(const void* source, Dtype from, void* destination, Dtype to, std::size_t count) {
  if (from == to) {
    std::memcpy(destination, source, (count * static_cast<std::size_t>(dtype_bits(from)) + 7) / 8);
    return;
  }
  const Conversion conversion = find_conversion(from, to);
  PHALANX_CHECK(conversion != nullptr, Error, "elements of dtype ", dtype_name(from),
                " cannot be converted to ", dtype_name(to));
  conversion(source, destination, count);
}

}  // namespace phalanx
