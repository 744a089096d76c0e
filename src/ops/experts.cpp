#include "ops/experts.h"

#include "core/error.h"
#include "ops/block.h"
#include "ops/fused_experts.h"
#include "ops/grouped_linear.h"
#include "ops/operator.h"
#include "ops/swiglu.h"

namespace phalanx {
namespace {

using WeighActivation = at::Tensor(at::Tensor, const at::Tensor&, const at::Tensor&, const at::Tensor&);

void check_arguments(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& weights,
                     const ExpertWeights& experts) {
  const at::Tensor &gate_up = experts.gate_up, &down = experts.down;
  PHALANX_CHECK(x.dim() == 2 && gate_up.dim() == 3 && down.dim() == 3 &&
                    gate_up.sym_size(2) == x.sym_size(1) && down.sym_size(1) == x.sym_size(1) &&
                    gate_up.sym_size(0) == down.sym_size(0) && gate_up.sym_size(1) == 2 * down.sym_size(2),
                Error, "experts: x ", x.sym_sizes(), ", gate_up ", gate_up.sym_sizes(), " and down ",
                down.sym_sizes(), " do not fit [T, H], [E, 2I, H] and [E, H, I]");
  PHALANX_CHECK(indices.dim() == 2 && indices.sym_size(0) == x.sym_size(0) &&
                    weights.sym_sizes() == indices.sym_sizes(),
                Error, "experts: indices ", indices.sym_sizes(), " and weights ", weights.sym_sizes(),
                " are not [T, K] for ", x.sym_size(0), " tokens");
  for (const at::Tensor* tensor : {&weights, &gate_up, &down}) {
    PHALANX_CHECK(tensor->scalar_type() == x.scalar_type(), Error, "experts: x is ", x.scalar_type(),
                  ", but weights, gate_up and down are ", weights.scalar_type(), ", ", gate_up.scalar_type(),
                  ", ", down.scalar_type(), "; convert them to one dtype");
  }
}

class Experts final : public Block {
 public:
  explicit Experts(ExpertsImplementation implementation) : implementation_(implementation) {}
  const char* name() const override { return "experts"; }

  Tensors forward(const Tensors& inputs, Tensors& saved) override {
    const at::Tensor &x = inputs[0], &indices = inputs[1], &weights = inputs[2];
    const ExpertWeights experts{inputs[3], inputs[4]};
    const ExpertGroups groups = group_by_expert(indices, experts.gate_up.size(0));
    const ExpertsForward result = experts_forward(x, weights, groups, experts, std::nullopt, implementation_);
    saved = {x, weights, experts.gate_up, experts.down, groups.ends, groups.choices, groups.rows, result.z};
    return {result.out};
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>& needs) override {
    const ExpertGroups groups{{}, saved[4], saved[5], saved[6]};
    const ExpertsGrads result =
        experts_backward(grads[0], saved[0], saved[1], groups, saved[7], {saved[2], saved[3]},
                         {needs[0], needs[2], needs[3], needs[4]}, implementation_);
    const at::Tensor grad_weights =
        result.weights.defined() ? result.weights.to(saved[1].scalar_type()) : at::Tensor();
    return {result.x, {}, grad_weights, result.gate_up, result.down};
  }

 private:
  ExpertsImplementation implementation_;
};

// Pre-activations z [R, 2I] and activation [R, I].
std::tuple<at::Tensor, at::Tensor> through_up(const at::Tensor& x, const ExpertGroups& groups,
                                              const ExpertWeights& experts,
                                              ExpertsImplementation implementation) {
  const at::Tensor gathered = rows_of_tokens(x, groups, std::nullopt);  // [R, H]
  if (implementation == ExpertsImplementation::kPhalanx) {
    return grouped_linear_swiglu(gathered, experts.gate_up, groups.ends);
  }
  const at::Tensor z = grouped_linear(gathered, experts.gate_up, groups.ends, implementation);
  return {z, swiglu_forward(z)};
}

// Gradients on the other side of the down projection and the activation.
struct DownGrads {
  at::Tensor z;                               // [R, 2I]
  at::Tensor weighted_activation;             // [R, I], where it is needed
  at::Tensor weights;                         // [T, K], where it is needed
  std::optional<at::Tensor> missing_weights;  // what `z` is still to be multiplied by
};

DownGrads through_down(const at::Tensor& upstream, const at::Tensor& z, const at::Tensor& weights,
                       const ExpertGroups& groups, const at::Tensor& down, const ExpertsNeeds& needs,
                       ExpertsImplementation implementation) {
  if (implementation == ExpertsImplementation::kPhalanx) {
    const SwigluLinearGrads grads = grouped_linear_swiglu_backward(upstream, down, z, weights, groups);
    return {grads.z, grads.weighted_activation, grads.weights, std::nullopt};
  }
  // The weight of a row is left out of the gradient of z and applied where rows are copied or summed anyway.
  const at::Tensor grad_activation =
      grouped_linear(upstream, down.transpose(1, 2), groups.ends, implementation);  // [R, I]
  auto [grad_z, activation] = swiglu_backward(grad_activation, z, needs.weights || needs.down);
  at::Tensor grad_weights;
  if (activation.defined()) {
    grad_weights = weigh_activation_(activation, grad_activation, weights, groups.choices);
  }
  return {grad_z, activation, grad_weights, weights};
}

}  // namespace

at::Tensor experts(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& weights,
                   const ExpertWeights& experts, ExpertsImplementation implementation) {
  check_arguments(x, indices, weights, experts);
  implementation = choose_experts_implementation(implementation, experts.gate_up);
  return apply(std::make_unique<Experts>(implementation),
               {x, indices, weights, experts.gate_up, experts.down})[0];
}

ExpertsForward experts_forward(const at::Tensor& x, const at::Tensor& weights, const ExpertGroups& groups,
                               const ExpertWeights& experts, const std::optional<at::Tensor>& residual,
                               ExpertsImplementation implementation) {
  auto [z, activation] = through_up(x, groups, experts, implementation);
  const at::Tensor y = grouped_linear(activation, experts.down, groups.ends, implementation);  // [R, H]
  return {tokens_of_rows(y, groups, weights, residual), z};
}

at::Tensor experts_pre_activations(const at::Tensor& x, const ExpertGroups& groups,
                                   const ExpertWeights& experts, ExpertsImplementation implementation) {
  return std::get<0>(through_up(x, groups, experts, implementation));
}

ExpertsGrads experts_backward(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weights,
                              const ExpertGroups& groups, const at::Tensor& z, const ExpertWeights& experts,
                              const ExpertsNeeds& needs, ExpertsImplementation implementation) {
  ExpertsGrads grads;
  if (!needs.x && !needs.weights && !needs.gate_up) {
    if (needs.down) {
      const at::Tensor grad_y = rows_of_tokens(grad_out, groups, weights);  // [R, H]
      grads.down = grouped_linear_weight_grad(grad_y, swiglu_forward(z), groups.ends, implementation);
    }
    return grads;
  }
  at::Tensor upstream = rows_of_tokens(grad_out, groups, std::nullopt);  // [R, H]
  DownGrads down = through_down(upstream, z, weights, groups, experts.down, needs, implementation);
  grads.weights = down.weights;
  if (groups.mask.defined() && grads.weights.defined()) {
    grads.weights.masked_fill_(groups.mask.logical_not(), 0);
  }
  if (needs.down) {
    grads.down = grouped_linear_weight_grad(upstream, down.weighted_activation, groups.ends, implementation);
  }
  upstream.reset();  // each of these tensors is half a gigabyte in a large model
  down.weighted_activation.reset();
  if (needs.gate_up) {
    const at::Tensor rows = rows_of_tokens(x, groups, down.missing_weights);  // [R, H]
    grads.gate_up = grouped_linear_weight_grad(down.z, rows, groups.ends, implementation);
  }
  if (needs.x) {
    const at::Tensor grad_rows =
        grouped_linear(down.z, experts.gate_up.transpose(1, 2), groups.ends, implementation);  // [R, H]
    grads.x = tokens_of_rows(grad_rows, groups, down.missing_weights, std::nullopt);
  }
  return grads;
}

at::Tensor weigh_activation_(at::Tensor activation, const at::Tensor& grad_activation,
                             const at::Tensor& weights, const at::Tensor& choices) {
  static const auto op = find_operator<WeighActivation>("phalanx::_weigh_activation_");
  return op.call(std::move(activation), grad_activation, weights, choices);
}

at::Tensor weigh_activation_meta_(at::Tensor, const at::Tensor&, const at::Tensor& weights,
                                  const at::Tensor&) {
  const auto statistics = weights.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return weights.new_empty_symint(weights.sym_sizes(), weights.options().dtype(statistics));
}

}  // namespace phalanx
