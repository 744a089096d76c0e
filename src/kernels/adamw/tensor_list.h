// One launch over many tensors: their entries lie in device memory, cut into chunks of equal size that are numbered through.
#pragma once
#include <cstdint>

namespace phalanx::kernels {

inline constexpr std::int64_t kTensorChunk =
    32768;  // elements of a chunk; the last of a tensor may be shorter

// The first part of every entry.
struct TensorSpan {
  std::int64_t elements;
  std::int64_t
      first_chunk;  // number of the tensor's first chunk; the entries are in the order of their chunks
};

constexpr std::int64_t tensor_chunks(std::int64_t elements) {
  return (elements + kTensorChunk - 1) / kTensorChunk;
}

}  // namespace phalanx::kernels
