#include "ops/projection_norm.h"
#include "ops/rms_norm.h"

#include <ATen/ops/cat.h>

namespace phalanx {

at::Tensor projection_norm_reference(const ProjectionNormInputs& in) {
  at::Tensor q = in.qkv.slice(1, 0, in.q_width);
  at::Tensor k = in.qkv.slice(1, in.q_width, in.q_width + in.k_width);
  const at::Tensor v = in.qkv.slice(1, in.q_width + in.k_width);
  if (in.q_norm.defined()) {
    q = rms_norm_reference(q, in.q_norm, in.eps);
    k = rms_norm_reference(k, in.k_norm, in.eps);
  }
  const at::Tensor qkv = at::cat({q, k, v}, 1);
  return in.clip.has_value() ? qkv.clamp(-*in.clip, *in.clip) : qkv;
}

}  // namespace phalanx
