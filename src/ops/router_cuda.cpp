#include "kernels/router/router.h"
#include "ops/cuda/launch.h"
#include "ops/router.h"

namespace phalanx {
namespace {

kernels::RouterShape shape_of(const at::Tensor& logits, std::int64_t top_k) {
  return {logits.size(0), static_cast<int>(logits.size(1)), static_cast<int>(top_k),
          cuda::element_of(logits, "router")};
}

kernels::RouterRule rule_of(std::int64_t score, bool normalize, double scale) {
  return {static_cast<ScoreFunction>(score) == ScoreFunction::kSigmoid, normalize, static_cast<float>(scale)};
}

// A replayed choice comes from the caller: the one place where the router waits for the device.
void check_replayed(const at::Tensor& indices, std::int64_t experts) {
  const bool outside = indices.lt(0).logical_or(indices.ge(experts)).any().item<bool>();
  PHALANX_CHECK(!outside, Error, "router: the replayed routing names an expert outside [0, ", experts, ")");
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> router_forward_cuda(const at::Tensor& logits_in,
                                                       const std::optional<at::Tensor>& replay_indices,
                                                       std::int64_t top_k, std::int64_t score, bool normalize,
                                                       double scale) {
  const cuda::Launch launch(logits_in);
  const at::Tensor logits = logits_in.contiguous();
  const at::Tensor replay = cuda::operand(replay_indices, at::kInt);
  if (replay.defined()) {
    check_replayed(replay, logits.size(1));
  }
  at::Tensor weights = logits.new_empty({logits.size(0), top_k});
  at::Tensor indices = logits.new_empty({logits.size(0), top_k}, logits.options().dtype(at::kInt));
  kernels::RouterForwardParams params;
  params.shape = shape_of(logits, top_k);
  params.rule = rule_of(score, normalize, scale);
  params.logits = logits.const_data_ptr();
  params.replay = static_cast<const std::int32_t*>(cuda::data_or_null(replay));
  params.weights = weights.mutable_data_ptr();
  params.indices = indices.mutable_data_ptr<std::int32_t>();
  kernels::router_forward(params, launch.stream());
  return {weights, indices};
}

at::Tensor router_backward_cuda(const at::Tensor& grad_weights_in,
                                const std::optional<at::Tensor>& grad_logits, const at::Tensor& logits_in,
                                const at::Tensor& indices_in, std::int64_t score, bool normalize,
                                double scale) {
  const cuda::Launch launch(logits_in);
  const at::Tensor logits = logits_in.contiguous(), indices = indices_in.contiguous();
  const at::Tensor grad_weights = cuda::operand(grad_weights_in, at::kFloat);
  const at::Tensor past = cuda::operand(grad_logits, logits.scalar_type());
  at::Tensor out = logits.new_empty(logits.sizes());
  kernels::RouterBackwardParams params;
  params.shape = shape_of(logits, indices.size(1));
  params.rule = rule_of(score, normalize, scale);
  params.grad_weights = grad_weights.const_data_ptr<float>();
  params.grad_past = cuda::data_or_null(past);
  params.logits = logits.const_data_ptr();
  params.indices = indices.const_data_ptr<std::int32_t>();
  params.grad_logits = out.mutable_data_ptr();
  kernels::router_backward(params, launch.stream());
  return out;
}

}  // namespace phalanx
