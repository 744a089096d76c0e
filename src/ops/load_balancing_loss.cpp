#include "ops/load_balancing_loss.h"

#include "core/error.h"
#include "ops/operator.h"

namespace phalanx {
namespace {

using Statistics = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, std::int64_t);
using Backward = at::Tensor(const at::Tensor&, const at::Tensor&);

void check_arguments(const Tensors& router_logits, std::int64_t top_k) {
  PHALANX_CHECK(!router_logits.empty(), Error,
                "load_balancing_loss: no router logits; ask every layer for them, or leave the loss out");
  const at::Tensor& first = router_logits[0];
  for (const at::Tensor& logits : router_logits) {
    PHALANX_CHECK(logits.dim() == 2 && logits.sym_size(1) == first.sym_size(-1) &&
                      logits.scalar_type() == first.scalar_type() && logits.is_floating_point(),
                  Error, "load_balancing_loss: the logits of a layer are ", logits.scalar_type(), " ",
                  logits.sym_sizes(), ", those of the first ", first.scalar_type(), " ", first.sym_sizes(),
                  "; expected [tokens, experts] of one floating dtype");
  }
  PHALANX_CHECK(top_k >= 1 && top_k <= first.sym_size(1), Error, "load_balancing_loss: top_k is ", top_k,
                ", with ", first.sym_size(1), " experts; it must lie in [1, number of experts]");
}

class LoadBalancingLoss final : public Block {
 public:
  explicit LoadBalancingLoss(std::int64_t top_k) : top_k_(top_k) {}
  const char* name() const override { return "load_balancing_loss"; }

  Tensors forward(const Tensors& inputs, Tensors& saved) override {
    at::Tensor choices, scores;  // [E]
    std::int64_t rows = 0;
    for (const at::Tensor& logits : inputs) {
      auto [layer_choices, layer_scores] = load_balancing_statistics(logits, top_k_);
      choices = choices.defined() ? choices.add(layer_choices) : layer_choices;
      scores = scores.defined() ? scores.add(layer_scores) : layer_scores;
      rows += logits.size(0);
    }
    const auto experts = static_cast<double>(inputs[0].size(1));
    const at::Tensor share = choices.div(static_cast<double>(rows));  // [E]
    saved = inputs;
    saved.push_back(share.mul(experts / static_cast<double>(rows)));  // d loss / d score of any token
    return {share.mul(scores.div(static_cast<double>(rows))).sum().mul(experts)};
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>& needs) override {
    const at::Tensor grad_scores = saved.back().mul(grads[0]);
    Tensors result(needs.size());
    for (std::size_t layer = 0; layer < needs.size(); ++layer) {
      if (needs[layer]) {
        result[layer] = load_balancing_backward(grad_scores, saved[layer]);
      }
    }
    return result;
  }

 private:
  std::int64_t top_k_;
};

at::TensorOptions statistics_options(const at::Tensor& logits) {
  return logits.options().dtype(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace

at::Tensor load_balancing_loss(const Tensors& router_logits, std::int64_t top_k) {
  check_arguments(router_logits, top_k);
  return phalanx::apply(std::make_unique<LoadBalancingLoss>(top_k), router_logits)[0];
}

std::tuple<at::Tensor, at::Tensor> load_balancing_statistics(const at::Tensor& logits, std::int64_t top_k) {
  static const auto op = find_operator<Statistics>("phalanx::_load_balancing_statistics");
  return op.call(logits, top_k);
}

at::Tensor load_balancing_backward(const at::Tensor& grad_scores, const at::Tensor& logits) {
  static const auto op = find_operator<Backward>("phalanx::_load_balancing_backward");
  return op.call(grad_scores, logits);
}

std::tuple<at::Tensor, at::Tensor> load_balancing_statistics_meta(const at::Tensor& logits, std::int64_t) {
  const auto make = [&] { return logits.new_empty_symint({logits.sym_size(1)}, statistics_options(logits)); };
  return {make(), make()};
}

at::Tensor load_balancing_backward_meta(const at::Tensor&, const at::Tensor& logits) {
  return logits.new_empty_symint(logits.sym_sizes());
}

}  // namespace phalanx
