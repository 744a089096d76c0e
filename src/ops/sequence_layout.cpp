#include "ops/sequence_layout.h"

#include "core/error.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace phalanx {

SequenceLayout layout_from_lengths(const std::vector<std::int64_t>& lengths, at::Device device) {
  SequenceLayout layout;
  layout.cu_seqlens.reserve(lengths.size() + 1);
  layout.cu_seqlens.push_back(0);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    PHALANX_CHECK(lengths[i] >= 1, Error, "sequence layout: document ", i, " has length ", lengths[i],
                  "; a document has at least one token, leave empty ones out");
    layout.cu_seqlens.push_back(layout.cu_seqlens.back() + lengths[i]);
    layout.max_length = std::max(layout.max_length, lengths[i]);
  }
  at::Tensor positions = at::empty({layout.tokens()}, at::TensorOptions().dtype(at::kLong));
  auto* position = positions.mutable_data_ptr<std::int64_t>();
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < length; ++i) {
      *position++ = i;
    }
  }
  layout.position_ids = upload(positions, device);
  layout.device_cu_seqlens = upload(at::tensor(layout.cu_seqlens, at::kInt), device);
  return layout;
}

at::Tensor upload(const at::Tensor& host, at::Device device) {
  PHALANX_CHECK(host.is_cpu(), Error, "upload: the tensor is on ", host.device(), " already");
  return device.is_cuda() ? host.pin_memory().to(device, host.scalar_type(), /*non_blocking=*/true)
                          : host.to(device);
}

}  // namespace phalanx
