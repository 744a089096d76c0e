#include "core/populate.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <vector>

namespace phalanx {
namespace {

TEST(PopulatePages, BringsFreshPagesInAndLeavesContentAlone) {
  constexpr std::size_t kBytes = 64 * 4096;
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* bytes = static_cast<char*>(memory);
  bytes[10 * 4096 + 5] = 'x';
  populate_pages(bytes + 100, kBytes - 200);  // not aligned: the pages at both ends are taken whole
  std::vector<unsigned char> present(64);
  ASSERT_EQ(::mincore(memory, kBytes, present.data()), 0);
  for (const unsigned char page : present) {
    EXPECT_EQ(page & 1, 1);
  }
  EXPECT_EQ(bytes[10 * 4096 + 5], 'x');
  EXPECT_EQ(bytes[0], 0);
  ::munmap(memory, kBytes);
}

}  // namespace
}  // namespace phalanx
