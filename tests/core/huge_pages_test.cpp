#include "core/huge_pages.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

namespace phalanx {
namespace {

// True when the mapping that holds `address` carries the flag that asks for huge pages.
bool is_advised(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = wanted >= begin && wanted < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line.find(" hg") != std::string::npos;
    }
  }
  return false;
}

TEST(HugePages, AreAskedForInsideLargeArraysOnly) {
  constexpr std::size_t kMib = 1 << 20;
  const auto large = std::make_unique<char[]>(16 * kMib);
  const auto other = std::make_unique<char[]>(16 * kMib);
  prefer_huge_pages(large.get(), 16 * kMib);
  prefer_huge_pages(other.get(), kMib);
  EXPECT_TRUE(is_advised(large.get() + 8 * kMib));
  EXPECT_FALSE(is_advised(other.get() + 8 * kMib));
  for (std::size_t i = 0; i < 16 * kMib; i += kMib) {
    EXPECT_EQ(large[i], 0);
  }
}

}  // namespace
}  // namespace phalanx
