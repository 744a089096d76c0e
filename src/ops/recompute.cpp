#include "ops/recompute.h"

#include "core/error.h"

#include <algorithm>

namespace phalanx {
namespace {

Tensors part(const Tensors& tensors, std::size_t begin, std::size_t end) {
  return {tensors.begin() + static_cast<std::ptrdiff_t>(begin),
          tensors.begin() + static_cast<std::ptrdiff_t>(end)};
}

// Inputs: all of the first half, then those of the second without its first.
class RecomputedLayer final : public Block {
 public:
  RecomputedLayer(HalfCall first, HalfCall second, Recompute how)
      : first_(std::move(first.half)),
        second_(std::move(second.half)),
        first_inputs_(first.inputs.size()),
        how_(how) {}
  const char* name() const override { return "layer"; }

  Tensors forward(const Tensors& in, Tensors& saved) override {
    Tensors second_in = part(in, first_inputs_ - 1, in.size());
    second_in[0] = first_->forward(part(in, 0, first_inputs_), saved)[0];
    first_->drop(saved, how_);
    first_saved_ = saved.size();
    Tensors second_saved;
    Tensors outputs = second_->forward(second_in, second_saved);
    second_->drop(second_saved, how_);
    second_saved[0].reset();
    saved.insert(saved.end(), second_saved.begin(), second_saved.end());
    return outputs;
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>& needs) override {
    const auto first_needs = std::vector<bool>(needs.begin(), needs.begin() + first_end());
    auto second_needs = std::vector<bool>(needs.begin() + first_end() - 1, needs.end());
    second_needs[0] = std::find(first_needs.begin(), first_needs.end(), true) != first_needs.end();
    Tensors first_saved = part(saved, 0, first_saved_);
    first_->restore(first_saved);
    Tensors second_result;
    {
      Tensors second_saved = part(saved, first_saved_, saved.size());
      second_saved[0] = first_->output(first_saved);
      second_->restore(second_saved);
      second_result = second_->backward(second_saved, grads, second_needs);
    }
    Tensors result = second_needs[0] ? first_->backward(first_saved, {second_result[0]}, first_needs)
                                     : Tensors(first_inputs_);
    result.resize(first_inputs_);
    result.insert(result.end(), second_result.begin() + 1, second_result.end());
    return result;
  }

 private:
  std::ptrdiff_t first_end() const { return static_cast<std::ptrdiff_t>(first_inputs_); }

  std::unique_ptr<LayerHalf> first_, second_;
  std::size_t first_inputs_;
  std::size_t first_saved_ = 0;
  Recompute how_;
};

}  // namespace

Recompute recompute_from_name(const std::string& name) {
  if (name == "none") return Recompute::kNone;
  if (name == "selective") return Recompute::kSelective;
  if (name == "full") return Recompute::kFull;
  fail<ConfigError>("recompute is \"", name, "\"; it must be none, selective or full");
}

Tensors run_half(HalfCall call) { return phalanx::apply(std::move(call.half), call.inputs); }

Tensors run_layer(HalfCall first, HalfCall second, Recompute how) {
  if (how == Recompute::kNone) {
    second.inputs[0] = run_half(std::move(first))[0];
    return run_half(std::move(second));
  }
  Tensors inputs = first.inputs;
  inputs.insert(inputs.end(), second.inputs.begin() + 1, second.inputs.end());
  // Qualified: std::apply would be found too.
  return phalanx::apply(std::make_unique<RecomputedLayer>(std::move(first), std::move(second), how), inputs);
}

}  // namespace phalanx
