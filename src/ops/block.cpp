#include "ops/block.h"

#include "core/error.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace phalanx {
namespace {

// What a call carries besides its tensors. torch's Function takes defined tensors only, so that undefined inputs are left out of
// its list and put back here.
struct BlockCall : torch::CustomClassHolder {
  BlockCall(std::unique_ptr<Block> owned, const Tensors& inputs)
      : block(std::move(owned)), defined(inputs.size()) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      defined[i] = inputs[i].defined();
    }
  }

  // Spreads one value per defined input over all inputs.
  template <class Value>
  std::vector<Value> spread(const std::vector<Value>& of_defined) const {
    std::vector<Value> result(defined.size());
    std::size_t next = 0;
    for (std::size_t i = 0; i < defined.size(); ++i) {
      if (defined[i]) {
        result[i] = of_defined[next++];
      }
    }
    return result;
  }

  std::unique_ptr<Block> block;
  std::vector<bool> defined;
};

Tensors keep_defined(const Tensors& tensors, const std::vector<bool>& defined) {
  Tensors result;
  for (std::size_t i = 0; i < defined.size(); ++i) {
    if (defined[i]) {
      result.push_back(tensors[i]);
    }
  }
  return result;
}

// A block chooses the dtypes of its products itself: what a surrounding autocast asks for, bind/block_operators.cpp has put
// into the weights.
using NoAutocast = c10::impl::ExcludeDispatchKeyGuard;

struct BlockFunction : torch::autograd::Function<BlockFunction> {
  static Tensors forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                         c10::intrusive_ptr<BlockCall> call) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
    Tensors saved;
    Tensors outputs = call->block->forward(call->spread(inputs.vec()), saved);
    context->save_for_backward(std::move(saved));
    context->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
    return outputs;
  }

  static Tensors backward(torch::autograd::AutogradContext* context, Tensors grads) {
    const NoAutocast no_autocast(c10::autocast_dispatch_keyset);
    const auto call = c10::static_intrusive_pointer_cast<BlockCall>(context->saved_data["call"].toCapsule());
    // Intermediates are saved without history, so a second derivative would be silently wrong.
    PHALANX_CHECK(!at::GradMode::is_enabled(), Error, call->block->name(),
                  ": second derivatives (create_graph=True) are not available through a fused block; use the "
                  "unfused path for them");
    std::vector<bool> needs;
    for (const bool defined : call->defined) {
      if (defined) {
        needs.push_back(context->needs_input_grad(needs.size()));
      }
    }
    Tensors result = call->block->backward(context->get_saved_variables(), grads, call->spread(needs));
    result.resize(call->defined.size());
    result = keep_defined(result, call->defined);
    result.emplace_back();  // for the call itself
    return result;
  }
};

}  // namespace

Tensors apply(std::unique_ptr<Block> block, const Tensors& inputs) {
  auto call = c10::make_intrusive<BlockCall>(std::move(block), inputs);
  return BlockFunction::apply(at::TensorList(keep_defined(inputs, call->defined)), std::move(call));
}

}  // namespace phalanx
