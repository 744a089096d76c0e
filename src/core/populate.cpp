#include "core/populate.h"

#include <cstdint>
#include <sys/mman.h>
#include <unistd.h>

namespace phalanx {

void populate_pages(void* data, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = address / page * page;
  const std::uintptr_t end = (address + bytes + page - 1) / page * page;
  if (bytes > 0) {
    ::madvise(reinterpret_cast<void*>(begin), end - begin,
              MADV_POPULATE_WRITE);  // before Linux 5.14: refused, page faults do it
  }
}

}  // namespace phalanx
