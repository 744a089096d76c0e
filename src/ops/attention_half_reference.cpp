#include "ops/attention.h"
#include "ops/attention_half.h"
#include "ops/qk_norm_rope.h"
#include "ops/rms_norm.h"

#include <ATen/TensorOperators.h>

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
  const auto heads = [&](const LinearWeights& projection, std::int64_t count) {
    return linear(n, projection).unflatten(1, {count, spec.head_dim});
  };
  QkNormRopeInputs inputs{heads(weights.q, spec.num_heads),
                          heads(weights.k, spec.num_kv_heads),
                          std::nullopt,
                          std::nullopt,
                          rope.cos,
                          rope.sin,
                          spec.norm_eps};
  if (spec.qk_norm) {
    inputs.q_norm = weights.q_norm;
    inputs.k_norm = weights.k_norm;
  }
  const auto [q, k] = qk_norm_rope_reference(inputs);
  const at::Tensor out = attention_reference({q, k, heads(weights.v, spec.num_kv_heads)}, spec, layout);
  return x + linear(out.flatten(1), weights.o);
}

}  // namespace phalanx
