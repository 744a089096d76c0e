#include "core/populate.h"

#include <cstdint>
#include <sys/mman.h>
#include <unistd.h>

namespace phalanx {

void populate_pages(void* data, std::size_t bytes) {
  if (bytes == 0) {
    return;
  }
  // From the start of the first page; the kernel rounds the end up.
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t before = reinterpret_cast<std::uintptr_t>(data) % page;
  // Linux before 5.14 refuses: page faults bring the memory in.
  ::madvise(static_cast<char*>(data) - before, before + bytes, MADV_POPULATE_WRITE);
}

}  // namespace phalanx
