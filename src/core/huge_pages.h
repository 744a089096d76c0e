// Large pages for large arrays.
#pragma once
#include <cstddef>

namespace phalanx {

// Tells the kernel to back [data, data + bytes) with 2 MiB pages where it can: an array that is about to be filled then costs 512
// times fewer page faults. A hint without any effect on content; small arrays are left alone.
void prefer_huge_pages(void* data, std::size_t bytes);

}  // namespace phalanx
