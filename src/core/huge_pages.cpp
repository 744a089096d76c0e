#include "core/huge_pages.h"

#include <cstdint>
#include <sys/mman.h>

namespace phalanx {

void prefer_huge_pages(void* data, std::size_t bytes) {
  constexpr std::uintptr_t kPage = 2 << 20;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (address + kPage - 1) / kPage * kPage;
  const std::uintptr_t end = (address + bytes) / kPage * kPage;
  if (begin < end) {
    ::madvise(reinterpret_cast<void*>(begin), end - begin,
              MADV_HUGEPAGE);  // kernels without them refuse, which is fine
  }
}

}  // namespace phalanx
