// Which tokens form a document. Every layer receives it: attention, RoPE, and whatever carries state along a
// sequence.
//
// Tokens of all documents lie one after the other, without padding: T = cu_seqlens.back().
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace phalanx {

struct SequenceLayout {
  std::vector<std::int64_t> cu_seqlens;  // [documents + 1], starts with 0
  at::Tensor position_ids;               // [T] int64, on the device of the tokens
  at::Tensor device_cu_seqlens;          // cu_seqlens as int32 on that device
  std::int64_t max_length = 0;           // of the longest document
  at::Tensor
      padding;  // [P] int64, tokens that are none: attention gives 0 there and has no gradient; or undefined

  std::int64_t tokens() const { return cu_seqlens.empty() ? 0 : cu_seqlens.back(); }
};

// Documents of the given lengths, positions counted from 0 in each. Throws Error for a length < 1.
SequenceLayout layout_from_lengths(const std::vector<std::int64_t>& lengths, at::Device device = at::kCPU);

// A host tensor on a device. Nothing waits: to a GPU it goes through pinned memory, behind the work queued there.
at::Tensor upload(const at::Tensor& host, at::Device device);

}  // namespace phalanx
