// XXH64 (Yann Collet's xxHash, 64 bit): protects files against damage, not against an attacker.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace phalanx {

// Feeds bytes in pieces of any size; the digest depends on the bytes and the seed alone.
class Xxh64 {
 public:
  explicit Xxh64(std::uint64_t seed = 0);
  void update(const void* data, std::size_t bytes);
  std::uint64_t digest() const;

 private:
  static constexpr std::size_t kStripe = 32;

  std::uint64_t seed_;
  std::array<std::uint64_t, 4> lanes_;
  std::array<unsigned char, kStripe> tail_{};  // bytes that do not fill a stripe yet
  std::size_t tail_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

std::uint64_t xxh64(const void* data, std::size_t bytes, std::uint64_t seed = 0);

// 16 lower-case hexadecimal digits, as xxhsum prints it.
std::string hex_digest(std::uint64_t digest);

}  // namespace phalanx
