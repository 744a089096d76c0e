// Rotary position embedding: the table of cosines and sines of a batch, shared by all layers.
//
// Legend: T tokens, D rotary dimensions of a head (those past D are not rotated).
#pragma once
#include "ops/specs.h"

#include <ATen/core/Tensor.h>

namespace phalanx {

// Dimension i < D/2 of a head turns together with i + D/2 by the angle position * inv_freq[i]:
//   y[i]       = x[i] * cos - x[i + D/2] * sin
//   y[i + D/2] = x[i + D/2] * cos + x[i] * sin
struct RopeTable {
  at::Tensor cos;  // [T, D/2] fp32 (fp64 where the model is fp64), times the spec's attention_scaling
  at::Tensor sin;  // [T, D/2]
};

// position_ids [T] integer, on the device of the tokens. `compute` is kFloat or kDouble: in fp32 the angle is the
// fp32 product of position and inverse frequency, as Transformers forms it, because at large positions the rounding
// of that product is visible in the cosine.
RopeTable make_rope_table(const RopeSpec& spec, const at::Tensor& position_ids, at::ScalarType compute);

}  // namespace phalanx
