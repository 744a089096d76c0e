// Registers the device operators: the work of the fused blocks, one kernel per device, visible to torch's
// dispatcher so that fake tensors, selective checkpointing and other devices work. Blocks call them through
// ops/<op>.h.
#include "ops/linear_cross_entropy.h"
#include "ops/qk_norm_rope.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

#include <torch/library.h>

namespace phalanx {

TORCH_LIBRARY_FRAGMENT(phalanx, m) {
  m.def(
      "_cross_entropy_rows(Tensor(a!) logits, Tensor labels, Tensor weights, bool make_gradient, bool "
      "want_entropy) "
      "-> (Tensor, Tensor, Tensor)");
  m.def(
      "_qk_norm_rope_forward(Tensor q, Tensor k, Tensor? q_norm, Tensor? k_norm, Tensor cos, Tensor sin, "
      "float eps) -> (Tensor, Tensor)");
  m.def(
      "_qk_norm_rope_backward(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor q, Tensor k, "
      "Tensor? q_norm, Tensor? k_norm, Tensor cos, Tensor sin, float eps) -> (Tensor, Tensor, Tensor)");
  m.def("_rms_norm_forward(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def(
      "_rms_norm_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor rstd, Tensor? residual_grad) "
      "-> (Tensor, Tensor)");
  m.def("_swiglu_forward(Tensor z) -> Tensor");
  m.def("_swiglu_backward(Tensor grad_a, Tensor z, bool want_activation) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(phalanx, CPU, m) {
  m.impl("_cross_entropy_rows", cross_entropy_rows_cpu);
  m.impl("_qk_norm_rope_forward", qk_norm_rope_forward_cpu);
  m.impl("_qk_norm_rope_backward", qk_norm_rope_backward_cpu);
  m.impl("_rms_norm_forward", rms_norm_forward_cpu);
  m.impl("_rms_norm_backward", rms_norm_backward_cpu);
  m.impl("_swiglu_forward", swiglu_forward_cpu);
  m.impl("_swiglu_backward", swiglu_backward_cpu);
}

TORCH_LIBRARY_IMPL(phalanx, Meta, m) {
  m.impl("_cross_entropy_rows", cross_entropy_rows_meta);
  m.impl("_qk_norm_rope_forward", qk_norm_rope_forward_meta);
  m.impl("_qk_norm_rope_backward", qk_norm_rope_backward_meta);
  m.impl("_rms_norm_forward", rms_norm_forward_meta);
  m.impl("_rms_norm_backward", rms_norm_backward_meta);
  m.impl("_swiglu_forward", swiglu_forward_meta);
  m.impl("_swiglu_backward", swiglu_backward_meta);
}

}  // namespace phalanx
