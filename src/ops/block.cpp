#include "ops/block.h"

#include "core/error.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace phalanx {
namespace {

struct BlockHolder : torch::CustomClassHolder {
  explicit BlockHolder(std::unique_ptr<Block> owned) : block(std::move(owned)) {}
  std::unique_ptr<Block> block;
};

struct BlockFunction : torch::autograd::Function<BlockFunction> {
  static Tensors forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                         c10::intrusive_ptr<BlockHolder> holder) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensors saved;
    Tensors outputs = holder->block->forward(inputs.vec(), saved);
    context->save_for_backward(std::move(saved));
    context->saved_data["inputs"] = static_cast<std::int64_t>(inputs.size());
    context->saved_data["block"] = c10::IValue::make_capsule(std::move(holder));
    return outputs;
  }

  static Tensors backward(torch::autograd::AutogradContext* context, Tensors grads) {
    const auto holder =
        c10::static_intrusive_pointer_cast<BlockHolder>(context->saved_data["block"].toCapsule());
    // Intermediates are saved without history, so a second derivative would be silently wrong.
    PHALANX_CHECK(!at::GradMode::is_enabled(), Error, holder->block->name(),
                  ": second derivatives (create_graph=True) are not available through a fused block; use the "
                  "unfused path for them");
    const auto count = context->saved_data["inputs"].toInt();
    std::vector<bool> needs(count);
    for (std::int64_t i = 0; i < count; ++i) {
      needs[i] = context->needs_input_grad(i);
    }
    Tensors result = holder->block->backward(context->get_saved_variables(), grads, needs);
    result.resize(count + 1);  // the last input is the holder
    return result;
  }
};

}  // namespace

Tensors apply(std::unique_ptr<Block> block, const Tensors& inputs) {
  return BlockFunction::apply(at::TensorList(inputs), c10::make_intrusive<BlockHolder>(std::move(block)));
}

}  // namespace phalanx
