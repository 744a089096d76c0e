#include "ops/rope.h"

#include "core/error.h"
#include "ops/sequence_layout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

namespace phalanx {

RopeTable make_rope_table(const RopeSpec& spec, const at::Tensor& position_ids, at::ScalarType compute) {
  PHALANX_CHECK(compute == at::kFloat || compute == at::kDouble, Error, "rope: a table in ", compute,
                "; expected Float or Double");
  PHALANX_CHECK(position_ids.dim() == 1 && !position_ids.is_floating_point(), Error,
                "rope: position_ids has shape ", position_ids.sym_sizes(), " and dtype ",
                position_ids.scalar_type(), "; expected integers [tokens]");
  const at::Tensor inv_freq = upload(
      at::tensor(spec.inv_freq, at::TensorOptions().dtype(at::kDouble)).to(compute), position_ids.device());
  const at::Tensor angles = position_ids.to(compute).unsqueeze(1) * inv_freq;  // [T, D/2]
  return {angles.cos() * spec.attention_scaling, angles.sin() * spec.attention_scaling};
}

}  // namespace phalanx
