// Causal attention within documents: softmax(scale * q k^T) v, where a query sees the keys of its own document up to itself, and with
// a sliding window W only the last W of them. Groups of query heads share a key/value head.
//
// Documents of equal length that follow each other run as one batch, the others one by one: no pair of documents is ever compared, and
// no mask is made without a window.
//
// Legend: T tokens, h query heads, g key/value heads, d head size.
#pragma once
#include "ops/sequence_layout.h"
#include "ops/specs.h"

#include <ATen/core/Tensor.h>

#include <tuple>

namespace phalanx {

// q [T, h, d], k and v [T, g, d]; only the last dimension must be dense.
struct AttentionInputs {
  at::Tensor q, k, v;
};

struct AttentionForward {
  at::Tensor out;        // [T, h, d] contiguous
  at::Tensor logsumexp;  // [T, h] fp32 (fp64 for fp64), of the scaled scores
};

// Not differentiable: the attention half calls both.
AttentionForward attention_forward(const AttentionInputs& in, const AttentionSpec& spec,
                                   const SequenceLayout& layout);

// grad_out [T, h, d] -> gradients of q [T, h, d], k and v [T, g, d], contiguous.
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out,
                                                                  const AttentionInputs& in,
                                                                  const AttentionForward& forward,
                                                                  const AttentionSpec& spec,
                                                                  const SequenceLayout& layout);

// With one mask over all tokens, in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
at::Tensor attention_reference(const AttentionInputs& in, const AttentionSpec& spec,
                               const SequenceLayout& layout);

}  // namespace phalanx
