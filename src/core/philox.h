// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011).
//
// The n-th number of a stream is a pure function of (seed, stream, n): no state to save, any order, any
// number of threads.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

namespace phalanx {

using PhiloxBlock = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

constexpr PhiloxBlock philox4x32(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// Block `index` of stream `stream`: the seed is the key, stream and index are the counter.
constexpr PhiloxBlock philox_block(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                     static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

// Uniform in [0, 1), a multiple of 2^-24.
constexpr float uniform_from_bits(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

// Four uniform numbers in [0, 1).
constexpr std::array<float, 4> philox_uniform4(std::uint64_t seed, std::uint64_t stream,
                                               std::uint64_t index) {
  const PhiloxBlock bits = philox_block(seed, stream, index);
  return {uniform_from_bits(bits[0]), uniform_from_bits(bits[1]), uniform_from_bits(bits[2]),
          uniform_from_bits(bits[3])};
}

// Four numbers of the standard normal distribution (Box-Muller, both numbers of each pair).
inline std::array<float, 4> philox_normal4(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  constexpr double kTwoPi = 6.283185307179586;
  const PhiloxBlock bits = philox_block(seed, stream, index);
  std::array<float, 4> out{};
  for (int pair = 0; pair < 4; pair += 2) {
    // (bits + 1) / 2^32 lies in (0, 1], where the logarithm is finite.
    const double radius = std::sqrt(-2.0 * std::log((bits[pair] + 1.0) * 0x1p-32));
    const double angle = kTwoPi * (bits[pair + 1] * 0x1p-32);
    out[pair] = static_cast<float>(radius * std::cos(angle));
    out[pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return out;
}

}  // namespace phalanx
