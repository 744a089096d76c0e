// Activation checkpointing: the two halves of a layer as one block that keeps little of what they save, and has them make the rest
// again in backward, to the bit. The choice of experts is always kept: it is never made a second time.
#pragma once
#include "ops/block.h"

#include <memory>
#include <string>

namespace phalanx {

enum class Recompute {
  kNone,
  kSelective,  // keeps the layer's input, attention's output and logsumexp, and the choice of experts
  kFull,       // keeps the layer's input and the choice of experts
};

Recompute recompute_from_name(const std::string& name);  // none | selective | full; throws ConfigError

// A block with one input that is no weight, its first, and one that it passes on, its first output.
class LayerHalf : public Block {
 public:
  // Takes out of what `forward` saved all that `restore` can make again.
  virtual void drop(Tensors& saved, Recompute how) const = 0;
  // Puts it back: the same bits. The input must be there.
  virtual void restore(Tensors& saved) = 0;
  // The first output, from what is saved.
  virtual at::Tensor output(const Tensors& saved) const = 0;
};

// A half that is yet to run, with its inputs.
struct HalfCall {
  std::unique_ptr<LayerHalf> half;
  Tensors inputs;
};

Tensors run_half(HalfCall call);  // by itself

// `second` on the first output of `first`; its own first input is left undefined. Returns the outputs of `second`.
Tensors run_layer(HalfCall first, HalfCall second, Recompute how);

}  // namespace phalanx
