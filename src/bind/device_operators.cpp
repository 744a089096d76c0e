// Registers the device operators: the work of the fused blocks, one kernel per device, visible to torch's
// dispatcher so that fake tensors, selective checkpointing and other devices work. Blocks call them through
// ops/<op>.h.
#include "ops/adamw.h"
#include "ops/experts.h"
#include "ops/fused_experts.h"
#include "ops/grouped_linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/load_balancing_loss.h"
#include "ops/permute.h"
#include "ops/qk_norm_rope.h"
#include "ops/rms_norm.h"
#include "ops/router.h"
#include "ops/swiglu.h"

#include <torch/library.h>

namespace phalanx {

TORCH_LIBRARY_FRAGMENT(phalanx, m) {
  m.def(
      "_adamw_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq, "
      "Tensor(d!)[] exp_avg_scale, Tensor(e!)[] exp_avg_sq_scale, Tensor(f!)[] master, float[] weight_decay, "
      "int[] positions, float learning_rate, float beta1, float beta2, float eps, "
      "int step, float gradient_scale, bool stochastic_rounding, int seed) -> ()");
  m.def("_combine_rows(Tensor values, Tensor rows, Tensor? weights, Tensor? residual) -> Tensor");
  m.def(
      "_cross_entropy_rows(Tensor(a!) logits, Tensor labels, Tensor weights, bool make_gradient, bool "
      "want_entropy) "
      "-> (Tensor, Tensor, Tensor)");
  m.def("_gather_rows(Tensor x, Tensor rows, Tensor? weights) -> Tensor");
  m.def("_global_norm(Tensor[] tensors) -> Tensor");
  m.def("_group_by_expert(Tensor indices, int num_experts) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("_grouped_linear(Tensor x, Tensor weight, Tensor ends, int implementation) -> Tensor");
  m.def("_grouped_linear_weight_grad(Tensor grad_y, Tensor x, Tensor ends, int implementation) -> Tensor");
  m.def("_grouped_linear_swiglu(Tensor x, Tensor gate_up, Tensor ends) -> (Tensor, Tensor)");
  m.def(
      "_grouped_linear_swiglu_backward(Tensor grad_out, Tensor down, Tensor z, Tensor weights, Tensor ends, "
      "Tensor choices, Tensor rows) -> (Tensor, Tensor, Tensor)");
  m.def("_load_balancing_backward(Tensor grad_scores, Tensor logits) -> Tensor");
  m.def("_load_balancing_statistics(Tensor logits, int top_k) -> (Tensor, Tensor)");
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
  m.def(
      "_router_forward(Tensor logits, Tensor? replay_indices, int top_k, int score, bool normalize, "
      "float scale) -> (Tensor, Tensor)");
  m.def(
      "_router_backward(Tensor grad_weights, Tensor? grad_logits, Tensor logits, Tensor indices, int score, "
      "bool normalize, float scale) -> Tensor");
  m.def("_swiglu_forward(Tensor z) -> Tensor");
  m.def("_swiglu_backward(Tensor grad_a, Tensor z, bool want_activation) -> (Tensor, Tensor)");
  m.def(
      "_weigh_activation_(Tensor(a!) activation, Tensor grad_activation, Tensor weights, Tensor choices) "
      "-> Tensor");
}

TORCH_LIBRARY_IMPL(phalanx, CPU, m) {
  m.impl("_adamw_", adamw_cpu_);
  m.impl("_combine_rows", combine_rows_cpu);
  m.impl("_cross_entropy_rows", cross_entropy_rows_cpu);
  m.impl("_gather_rows", gather_rows_cpu);
  m.impl("_global_norm", global_norm_cpu);
  m.impl("_group_by_expert", group_by_expert_cpu);
  m.impl("_grouped_linear", grouped_linear_cpu);
  m.impl("_grouped_linear_weight_grad", grouped_linear_weight_grad_cpu);
  m.impl("_load_balancing_backward", load_balancing_backward_cpu);
  m.impl("_load_balancing_statistics", load_balancing_statistics_cpu);
  m.impl("_qk_norm_rope_forward", qk_norm_rope_forward_cpu);
  m.impl("_qk_norm_rope_backward", qk_norm_rope_backward_cpu);
  m.impl("_rms_norm_forward", rms_norm_forward_cpu);
  m.impl("_rms_norm_backward", rms_norm_backward_cpu);
  m.impl("_router_forward", router_forward_cpu);
  m.impl("_router_backward", router_backward_cpu);
  m.impl("_swiglu_forward", swiglu_forward_cpu);
  m.impl("_swiglu_backward", swiglu_backward_cpu);
  m.impl("_weigh_activation_", weigh_activation_cpu_);
}

#ifdef PHALANX_CUDA
TORCH_LIBRARY_IMPL(phalanx, CUDA, m) {
  m.impl("_adamw_", adamw_cuda_);
  m.impl("_combine_rows", combine_rows_cuda);
  m.impl("_cross_entropy_rows", cross_entropy_rows_cuda);
  m.impl("_gather_rows", gather_rows_cuda);
  m.impl("_global_norm", global_norm_cuda);
  m.impl("_group_by_expert", group_by_expert_cuda);
  m.impl("_grouped_linear", grouped_linear_cuda);
  m.impl("_grouped_linear_weight_grad", grouped_linear_weight_grad_cuda);
  m.impl("_grouped_linear_swiglu", grouped_linear_swiglu_cuda);
  m.impl("_grouped_linear_swiglu_backward", grouped_linear_swiglu_backward_cuda);
  m.impl("_load_balancing_backward", load_balancing_backward_cuda);
  m.impl("_load_balancing_statistics", load_balancing_statistics_cuda);
  m.impl("_qk_norm_rope_forward", qk_norm_rope_forward_cuda);
  m.impl("_qk_norm_rope_backward", qk_norm_rope_backward_cuda);
  m.impl("_rms_norm_forward", rms_norm_forward_cuda);
  m.impl("_rms_norm_backward", rms_norm_backward_cuda);
  m.impl("_router_forward", router_forward_cuda);
  m.impl("_router_backward", router_backward_cuda);
  m.impl("_swiglu_forward", swiglu_forward_cuda);
  m.impl("_swiglu_backward", swiglu_backward_cuda);
  m.impl("_weigh_activation_", weigh_activation_cuda_);
}
#endif

TORCH_LIBRARY_IMPL(phalanx, Meta, m) {
  m.impl("_combine_rows", combine_rows_meta);
  m.impl("_cross_entropy_rows", cross_entropy_rows_meta);
  m.impl("_gather_rows", gather_rows_meta);
  m.impl("_group_by_expert", group_by_expert_meta);
  m.impl("_grouped_linear", grouped_linear_meta);
  m.impl("_grouped_linear_weight_grad", grouped_linear_weight_grad_meta);
  m.impl("_grouped_linear_swiglu", grouped_linear_swiglu_meta);
  m.impl("_grouped_linear_swiglu_backward", grouped_linear_swiglu_backward_meta);
  m.impl("_load_balancing_backward", load_balancing_backward_meta);
  m.impl("_load_balancing_statistics", load_balancing_statistics_meta);
  m.impl("_qk_norm_rope_forward", qk_norm_rope_forward_meta);
  m.impl("_qk_norm_rope_backward", qk_norm_rope_backward_meta);
  m.impl("_rms_norm_forward", rms_norm_forward_meta);
  m.impl("_rms_norm_backward", rms_norm_backward_meta);
  m.impl("_router_forward", router_forward_meta);
  m.impl("_router_backward", router_backward_meta);
  m.impl("_swiglu_forward", swiglu_forward_meta);
  m.impl("_swiglu_backward", swiglu_backward_meta);
  m.impl("_weigh_activation_", weigh_activation_meta_);
}

}  // namespace phalanx
