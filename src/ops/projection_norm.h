// What some models (OLMoE) do to q, k and v before they are split into heads: an RMSNorm over the whole of q and the whole of k, then
// values of q, k and v beyond [-clip, clip] are cut off. Norms round as ops/rms_norm.h does.
//
// Legend: T tokens, Q, K and V columns of q, k and v.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace phalanx {

struct ProjectionNormInputs {
  at::Tensor qkv;     // [T, Q + K + V]
  at::Tensor q_norm;  // [Q], undefined without norms
  at::Tensor k_norm;  // [K], undefined without norms
  std::int64_t q_width = 0, k_width = 0;
  double eps = 1e-6;
  std::optional<double> clip;
};

// Differentiable in qkv and the norms -> [T, Q + K + V]. Saved: the inputs. Throws Error for shapes that do not fit.
at::Tensor projection_norm(const ProjectionNormInputs& in);

// What the attention half calls.
at::Tensor projection_norm_forward(const ProjectionNormInputs& in);
struct ProjectionNormGrads {
  at::Tensor qkv;             // [T, Q + K + V]
  at::Tensor q_norm, k_norm;  // undefined without norms
};
ProjectionNormGrads projection_norm_backward(const at::Tensor& grad, const ProjectionNormInputs& in);

// The same in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
at::Tensor projection_norm_reference(const ProjectionNormInputs& in);

}  // namespace phalanx
