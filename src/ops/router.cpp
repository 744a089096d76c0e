#include "ops/router.h"

#include "core/error.h"
#include "ops/block.h"
#include "ops/operator.h"

namespace phalanx {
namespace {

using Forward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const std::optional<at::Tensor>&,
                                                   std::int64_t, std::int64_t, bool, double);
using Backward = at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&, const at::Tensor&,
                            const at::Tensor&, std::int64_t, bool, double);

void check_arguments(const at::Tensor& logits, const RouterSpec& spec, const at::Tensor& replay_indices) {
  PHALANX_CHECK(logits.dim() == 2 && logits.sym_size(1) == spec.num_experts, Error,
                "router: logits have shape ", logits.sym_sizes(), "; expected [tokens, ", spec.num_experts,
                "]");
  PHALANX_CHECK(spec.top_k >= 1 && spec.top_k <= spec.num_experts, Error, "router: ", spec.top_k,
                " experts per token of ", spec.num_experts, "; top_k must lie in [1, number of experts]");
  PHALANX_CHECK(!replay_indices.defined() ||
                    (replay_indices.dim() == 2 && replay_indices.sym_size(0) == logits.sym_size(0) &&
                     replay_indices.sym_size(1) == spec.top_k && replay_indices.scalar_type() == at::kInt),
                Error, "router: replayed indices are ", replay_indices.scalar_type(), " ",
                replay_indices.sym_sizes(), "; expected int32 [", logits.sym_size(0), ", ", spec.top_k, "]");
}

class Router final : public Block {
 public:
  Router(const RouterSpec& spec, at::Tensor replay_indices)
      : spec_(spec), replay_indices_(std::move(replay_indices)) {}
  const char* name() const override { return "router"; }

  Tensors forward(const Tensors& inputs, Tensors& saved) override {
    const Routing routing = router_forward(inputs[0], spec_, replay_indices_);
    saved = {inputs[0], routing.indices};
    return {routing.weights, routing.indices};
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>&) override {
    return {router_backward(grads[0], std::nullopt, saved[0], saved[1], spec_)};
  }

 private:
  RouterSpec spec_;
  at::Tensor replay_indices_;
};

}  // namespace

Routing router(const at::Tensor& logits, const RouterSpec& spec, const at::Tensor& replay_indices) {
  const Tensors outputs = apply(std::make_unique<Router>(spec, replay_indices), {logits});
  return {outputs[0], outputs[1]};
}

Routing router_forward(const at::Tensor& logits, const RouterSpec& spec, const at::Tensor& replay_indices) {
  check_arguments(logits, spec, replay_indices);
  static const auto op = find_operator<Forward>("phalanx::_router_forward");
  auto [weights, indices] =
      op.call(logits, replay_indices.defined() ? std::optional(replay_indices) : std::nullopt, spec.top_k,
              static_cast<std::int64_t>(spec.score), spec.normalize, spec.scale);
  return {weights, indices};
}

at::Tensor router_backward(const at::Tensor& grad_weights, const std::optional<at::Tensor>& grad_logits,
                           const at::Tensor& logits, const at::Tensor& indices, const RouterSpec& spec) {
  static const auto op = find_operator<Backward>("phalanx::_router_backward");
  return op.call(grad_weights, grad_logits, logits, indices, static_cast<std::int64_t>(spec.score),
                 spec.normalize, spec.scale);
}

std::tuple<at::Tensor, at::Tensor> router_forward_meta(const at::Tensor& logits,
                                                       const std::optional<at::Tensor>&, std::int64_t top_k,
                                                       std::int64_t, bool, double) {
  return {logits.new_empty_symint({logits.sym_size(0), top_k}),
          logits.new_empty_symint({logits.sym_size(0), top_k}, logits.options().dtype(at::kInt))};
}

at::Tensor router_backward_meta(const at::Tensor&, const std::optional<at::Tensor>&, const at::Tensor& logits,
                                const at::Tensor&, std::int64_t, bool, double) {
  return logits.new_empty_symint(logits.sym_sizes());
}

}  // namespace phalanx
