// The attention half of a decoder layer: out = x + o(attention(q, k, v)), with q, k, v projected from rms_norm(x), q and k normalised
// and all three cut off (where the model does), q and k rotated by position.
//
// One block. Saved: x, the weights, 1 / rms of each token, the projections qkv [T, (h + 2g) d], the attention output [T, h d] and its
// logsumexp. The normalised input and what attention takes are computed again in backward.
//
// Legend: T tokens, H hidden, h query heads, g key/value heads, d head size.
#pragma once
#include "ops/recompute.h"
#include "ops/rope.h"
#include "ops/sequence_layout.h"
#include "ops/specs.h"
#include "ops/weights.h"

#include <ATen/core/Tensor.h>

namespace phalanx {

struct AttentionWeights {
  at::Tensor norm;     // [H]
  LinearWeights q;     // [h d, H]
  LinearWeights k, v;  // [g d, H]
  LinearWeights o;     // [H, h d]
  at::Tensor q_norm,
      k_norm;  // [d] per head, [h d] and [g d] over all heads, undefined where the spec has no qk_norm
};

// Differentiable in x and all weights. x [T, H] and the norm share one dtype, which is that of the result; the other weights share
// one, the same or a narrower one (autocast). When the weights of q, k and v lie side by side in memory their
// three products run as one. Throws Error for shapes or dtypes that do not fit.
at::Tensor attention_half(const at::Tensor& x, const AttentionWeights& weights, const AttentionSpec& spec,
                          double norm_eps, const RopeTable& rope, const SequenceLayout& layout);

// The same, to be run with the other half of its layer.
HalfCall attention_half_call(const at::Tensor& x, const AttentionWeights& weights, const AttentionSpec& spec,
                             double norm_eps, const RopeTable& rope, const SequenceLayout& layout);

// True when the weights [*, H] are rows of one dense matrix, in this order.
bool lie_side_by_side(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
at::Tensor attention_half_reference(const at::Tensor& x, const AttentionWeights& weights,
                                    const AttentionSpec& spec, double norm_eps, const RopeTable& rope,
                                    const SequenceLayout& layout);

}  // namespace phalanx
