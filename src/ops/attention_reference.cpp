#include "ops/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <limits>

namespace phalanx {

at::Tensor attention_reference(const AttentionInputs& in, const AttentionSpec& spec,
                               const SequenceLayout& layout) {
  const std::int64_t group = spec.num_heads / spec.num_kv_heads;
  const at::Tensor q = in.q.transpose(0, 1);                              // [h, T, d]
  const at::Tensor k = in.k.transpose(0, 1).repeat_interleave(group, 0);  // [h, T, d]
  const at::Tensor v = in.v.transpose(0, 1).repeat_interleave(group, 0);  // [h, T, d]
  at::Tensor document = at::arange(layout.tokens(), at::TensorOptions().dtype(at::kLong));
  for (std::size_t i = 0; i + 1 < layout.cu_seqlens.size(); ++i) {
    document.slice(0, layout.cu_seqlens[i], layout.cu_seqlens[i + 1]).fill_(static_cast<std::int64_t>(i));
  }
  const at::Tensor position = at::arange(layout.tokens(), at::TensorOptions().dtype(at::kLong));
  const at::Tensor distance = position.unsqueeze(1) - position.unsqueeze(0);
  at::Tensor visible = document.unsqueeze(1).eq(document.unsqueeze(0)).logical_and(distance.ge(0));
  if (spec.sliding_window.has_value()) {
    visible = visible.logical_and(distance.lt(*spec.sliding_window));
  }
  const at::Tensor scores = q.matmul(k.transpose(1, 2)) * spec.scale;  // [h, T, T]
  const at::Tensor weights =
      scores.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity()).softmax(-1);
  return weights.matmul(v).transpose(0, 1);
}

}  // namespace phalanx
