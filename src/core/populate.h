// Memory that is about to be filled for the first time.
#pragma once
#include <cstddef>

namespace phalanx {

// Lets the kernel supply all pages of [data, data + bytes) in one call instead of one page fault each; filling fresh memory from a file
// takes a fifth less time so. Content does not change, and memory that is there already costs next to nothing.
void populate_pages(void* data, std::size_t bytes);

}  // namespace phalanx
