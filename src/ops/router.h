// The router of a Mixture-of-Experts layer: scores of the logits (softmax or sigmoid) in fp32, the top_k experts of
// each token with ties to the lower index, their scores as weights, optionally divided by their sum, times a
// scale, rounded to the dtype of the logits, as Transformers' Qwen3MoeTopKRouter does.
//
// Legend: T tokens, E experts, K experts per token.
#pragma once
#include "ops/specs.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace phalanx {

struct Routing {
  at::Tensor weights;  // [T, K], dtype of the logits
  at::Tensor indices;  // [T, K] int32, by falling score
};

// Differentiable in the logits. logits [T, E] floating; replay_indices [T, K] int32 forces the choice of experts,
// undefined leaves it free. Saved: logits, indices. Throws Error for shapes that do not fit, and for a replayed
// index outside [0, E).
Routing router(const at::Tensor& logits, const RouterSpec& spec, const at::Tensor& replay_indices = {});

// The device operators behind it, and behind the expert half of a layer.
Routing router_forward(const at::Tensor& logits, const RouterSpec& spec, const at::Tensor& replay_indices);
// grad_weights [T, K] in fp32 (fp64), or of the logits' dtype; grad_logits [T, E], where given, is the gradient that
// reached the logits past the weights -> gradient of the logits [T, E], of their dtype.
at::Tensor router_backward(const at::Tensor& grad_weights, const std::optional<at::Tensor>& grad_logits,
                           const at::Tensor& logits, const at::Tensor& indices, const RouterSpec& spec);

// Kernels of the device operators.
std::tuple<at::Tensor, at::Tensor> router_forward_cpu(const at::Tensor& logits,
                                                      const std::optional<at::Tensor>& replay_indices,
                                                      std::int64_t top_k, std::int64_t score, bool normalize,
                                                      double scale);
std::tuple<at::Tensor, at::Tensor> router_forward_meta(const at::Tensor& logits,
                                                       const std::optional<at::Tensor>& replay_indices,
                                                       std::int64_t top_k, std::int64_t score, bool normalize,
                                                       double scale);
std::tuple<at::Tensor, at::Tensor> router_forward_cuda(const at::Tensor& logits,
                                                       const std::optional<at::Tensor>& replay_indices,
                                                       std::int64_t top_k, std::int64_t score, bool normalize,
                                                       double scale);
at::Tensor router_backward_cpu(const at::Tensor& grad_weights, const std::optional<at::Tensor>& grad_logits,
                               const at::Tensor& logits, const at::Tensor& indices, std::int64_t score,
                               bool normalize, double scale);
at::Tensor router_backward_meta(const at::Tensor& grad_weights, const std::optional<at::Tensor>& grad_logits,
                                const at::Tensor& logits, const at::Tensor& indices, std::int64_t score,
                                bool normalize, double scale);
at::Tensor router_backward_cuda(const at::Tensor& grad_weights, const std::optional<at::Tensor>& grad_logits,
                                const at::Tensor& logits, const at::Tensor& indices, std::int64_t score,
                                bool normalize, double scale);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
Routing router_reference(const at::Tensor& logits, const RouterSpec& spec,
                         const at::Tensor& replay_indices = {});

}  // namespace phalanx
