// Autograd for a fused block without autograd headers: one torch::autograd::Function serves every block.
//
// A block is one object per call. `forward` runs below autograd and states what it keeps; `backward` gets
// exactly that back. Device work inside goes through dispatched operators (ops/device_ops.h), so that fake
// tensors, selective checkpointing and other devices work.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace phalanx {

using Tensors = std::vector<at::Tensor>;

class Block {
 public:
  virtual ~Block() = default;
  virtual const char* name() const = 0;
  // Appends to `saved` what backward needs; undefined tensors are allowed there, not among the outputs.
  virtual Tensors forward(const Tensors& inputs, Tensors& saved) = 0;
  // One gradient per input, undefined where `needs[i]` is false. A gradient in `grads` is undefined for an
  // output nobody used.
  virtual Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>& needs) = 0;
};

// Runs the block and records it on the tape when an input requires a gradient. Undefined inputs are allowed.
// Differentiating the backward itself (create_graph) is refused by name.
Tensors apply(std::unique_ptr<Block> block, const Tensors& inputs);

}  // namespace phalanx
