#include "ops/attention.h"
#include "ops/attention_half.h"
#include "ops/projection_norm.h"
#include "ops/qk_norm_rope.h"
#include "ops/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

namespace phalanx {
namespace {

at::Tensor linear(const at::Tensor& x, const LinearWeights& weights) {
  const at::Tensor y = x.matmul(weights.weight.t());
  return weights.bias.defined() ? y + weights.bias : y;
}

}  // namespace

at::Tensor attention_half_reference(const at::Tensor& x, const AttentionWeights& weights,
                                    const AttentionSpec& spec, double norm_eps, const RopeTable& rope,
                                    const SequenceLayout& layout) {
  const at::Tensor n = rms_norm_reference(x, weights.norm, norm_eps);
  const bool all_heads = spec.qk_norm == QkNorm::kAllHeads;
  const at::Tensor qkv = projection_norm_reference(
      {at::cat({linear(n, weights.q), linear(n, weights.k), linear(n, weights.v)}, 1),
       all_heads ? weights.q_norm : at::Tensor(), all_heads ? weights.k_norm : at::Tensor(),
       spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim, spec.norm_eps, spec.clip_qkv});
  const at::Tensor heads = qkv.unflatten(1, {spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim});
  QkNormRopeInputs inputs{heads.slice(1, 0, spec.num_heads),
                          heads.slice(1, spec.num_heads, spec.num_heads + spec.num_kv_heads),
                          std::nullopt,
                          std::nullopt,
                          rope.cos,
                          rope.sin,
                          spec.norm_eps};
  if (spec.qk_norm == QkNorm::kPerHead) {
    inputs.q_norm = weights.q_norm;
    inputs.k_norm = weights.k_norm;
  }
  const auto [q, k] = qk_norm_rope_reference(inputs);
  const at::Tensor out =
      attention_reference({q, k, heads.slice(1, spec.num_heads + spec.num_kv_heads)}, spec, layout);
  return x + linear(out.flatten(1), weights.o);
}

}  // namespace phalanx
