#include "core/hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace phalanx {
namespace {

static_assert(std::endian::native == std::endian::little, "XXH64 reads little-endian words");

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5u;

template <class Word>
std::uint64_t load(const unsigned char* at) {
  Word word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

std::uint64_t mix(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

void mix_stripe(std::array<std::uint64_t, 4>& lanes, const unsigned char* at) {
  for (std::size_t i = 0; i < 4; ++i) {
    lanes[i] = mix(lanes[i], load<std::uint64_t>(at + 8 * i));
  }
}

std::uint64_t merge_lanes(const std::array<std::uint64_t, 4>& lanes) {
  std::uint64_t hash =
      std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
  for (const std::uint64_t lane : lanes) {
    hash = (hash ^ mix(0, lane)) * kPrime1 + kPrime4;
  }
  return hash;
}

std::uint64_t mix_tail(std::uint64_t hash, const unsigned char* at, std::size_t bytes) {
  for (; bytes >= 8; at += 8, bytes -= 8) {
    hash = std::rotl(hash ^ mix(0, load<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (bytes >= 4) {
    hash = std::rotl(hash ^ (load<std::uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
    bytes -= 4;
  }
  for (; bytes > 0; ++at, --bytes) {
    hash = std::rotl(hash ^ (*at * kPrime5), 11) * kPrime1;
  }
  return hash;
}

std::uint64_t avalanche(std::uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace

Xxh64::Xxh64(std::uint64_t seed)
    : seed_(seed), lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1} {}

void Xxh64::update(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  total_bytes_ += bytes;
  if (tail_bytes_ > 0) {
    const std::size_t taken = std::min(bytes, kStripe - tail_bytes_);
    std::copy_n(at, taken, tail_.data() + tail_bytes_);
    tail_bytes_ += taken;
    at += taken;
    bytes -= taken;
    if (tail_bytes_ < kStripe) {
      return;
    }
    mix_stripe(lanes_, tail_.data());
    tail_bytes_ = 0;
  }
  for (; bytes >= kStripe; at += kStripe, bytes -= kStripe) {
    mix_stripe(lanes_, at);
  }
  std::copy_n(at, bytes, tail_.data());
  tail_bytes_ = bytes;
}

std::uint64_t Xxh64::digest() const {
  const std::uint64_t start = total_bytes_ >= kStripe ? merge_lanes(lanes_) : seed_ + kPrime5;
  return avalanche(mix_tail(start + total_bytes_, tail_.data(), tail_bytes_));
}

std::uint64_t xxh64(const void* data, std::size_t bytes, std::uint64_t seed) {
  Xxh64 hash(seed);
  hash.update(data, bytes);
  return hash.digest();
}

std::string hex_digest(std::uint64_t digest) {
  std::string out(16, '0');
  for (auto digit = out.rbegin(); digit != out.rend(); ++digit, digest >>= 4) {
    *digit = "0123456789abcdef"[digest & 15];
  }
  return out;
}

}  // namespace phalanx
