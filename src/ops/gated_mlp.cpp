#include "ops/gated_mlp.h"

#include "core/error.h"
#include "ops/block.h"
#include "ops/swiglu.h"
#include "ops/token_sum.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>

namespace phalanx {
namespace {

enum Input { kN, kGate, kUp, kDown, kOutputGate, kInputs };
// The inputs are saved first, under their own numbers.
enum Saved { kZ = kInputs, kScale };

class GatedMlp final : public Block {
 public:
  const char* name() const override { return "gated_mlp"; }

  Tensors forward(const Tensors& in, Tensors& saved) override {
    const GatedMlpForward result =
        gated_mlp_forward(in[kN], weights_of(in), in[kN].new_zeros(in[kN].sizes()));
    saved = in;
    saved.insert(saved.end(), {result.z, result.scale});
    return {result.out};
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>& needs) override {
    const GatedMlpGrads result = gated_mlp_backward(
        grads[0].contiguous(), saved[kN], {{}, saved[kZ], saved[kScale]}, weights_of(saved),
        {needs[kN], needs[kGate], needs[kUp], needs[kDown], needs[kOutputGate]});
    return {result.n, result.gate, result.up, result.down, result.output_gate};
  }

 private:
  static GatedMlpWeights weights_of(const Tensors& in) {
    return {{in[kGate], {}}, {in[kUp], {}}, {in[kDown], {}}, in[kOutputGate]};
  }
};

// Gate and up side by side in z [T, 2I].
at::Tensor left(const at::Tensor& z) { return z.narrow_symint(1, 0, z.sym_size(1) / 2); }
at::Tensor right(const at::Tensor& z) { return z.narrow_symint(1, z.sym_size(1) / 2, z.sym_size(1) / 2); }

at::Tensor scaled_activation(const GatedMlpForward& forward) {  // [T, I]
  at::Tensor activation = swiglu_forward(forward.z);
  return forward.scale.defined() ? activation.mul_(forward.scale) : activation;
}

// <upstream, activation> of each token [T, 1], in fp32 (fp64).
at::Tensor scale_grad(const at::Tensor& upstream, const at::Tensor& activation) {
  const auto compute = upstream.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return (upstream.to(compute) * activation.to(compute)).sum(1, /*keepdim=*/true);
}

}  // namespace

void check_gated_mlp(const char* op, const at::Tensor& n, const GatedMlpWeights& weights) {
  PHALANX_CHECK(n.dim() == 2, Error, op, ": x has shape ", n.sym_sizes(), "; expected [tokens, hidden]");
  const c10::SymInt hidden = n.sym_size(1), width = weights.gate.weight.sym_size(0);
  const auto check = [&](const char* name, const at::Tensor& tensor, std::vector<c10::SymInt> shape) {
    PHALANX_CHECK(tensor.sym_sizes() == c10::SymIntArrayRef(shape), Error, op, ": ", name, " has shape ",
                  tensor.sym_sizes(), "; expected ", c10::SymIntArrayRef(shape));
    PHALANX_CHECK(tensor.scalar_type() == n.scalar_type(), Error, op, ": x is ", n.scalar_type(), " and ",
                  name, " is ", tensor.scalar_type(), "; convert one to the other's dtype");
  };
  check("gate", weights.gate.weight, {width, hidden});
  check("up", weights.up.weight, {width, hidden});
  check("down", weights.down.weight, {hidden, width});
  if (weights.output_gate.defined()) {
    check("output_gate", weights.output_gate, {1, hidden});
  }
  for (const LinearWeights* linear : {&weights.gate, &weights.up, &weights.down}) {
    PHALANX_CHECK(!linear->bias.defined(), Error, op, ": gate, up and down take no bias");
  }
}

at::Tensor gated_mlp(const at::Tensor& n, const GatedMlpWeights& weights) {
  check_gated_mlp("gated_mlp", n, weights);
  return apply(std::make_unique<GatedMlp>(),
               {n, weights.gate.weight, weights.up.weight, weights.down.weight, weights.output_gate})[0];
}

GatedMlpForward gated_mlp_pre_activations(const at::Tensor& n, const GatedMlpWeights& weights) {
  GatedMlpForward result;
  result.z = n.new_empty_symint({n.sym_size(0), 2 * weights.gate.weight.sym_size(0)});
  at::Tensor gate = left(result.z), up = right(result.z);
  at::mm_out(gate, n, weights.gate.weight.t());
  at::mm_out(up, n, weights.up.weight.t());
  if (weights.output_gate.defined()) {
    result.scale = n.mm(weights.output_gate.t()).sigmoid_();
  }
  return result;
}

at::Tensor gated_mlp_output(const GatedMlpForward& forward, const GatedMlpWeights& weights,
                            const at::Tensor& residual) {
  return residual.addmm(scaled_activation(forward), weights.down.weight.t());
}

GatedMlpForward gated_mlp_forward(const at::Tensor& n, const GatedMlpWeights& weights,
                                  const at::Tensor& residual) {
  GatedMlpForward result = gated_mlp_pre_activations(n, weights);
  result.out = gated_mlp_output(result, weights, residual);
  return result;
}

GatedMlpGrads gated_mlp_backward(const at::Tensor& grad_out, const at::Tensor& n,
                                 const GatedMlpForward& forward, const GatedMlpWeights& weights,
                                 const GatedMlpNeeds& needs) {
  const bool scaled = forward.scale.defined();
  const bool through_scale = scaled && (needs.n || needs.output_gate);
  GatedMlpGrads grads;
  if (!needs.n && !needs.gate && !needs.up && !needs.output_gate) {
    grads.down = needs.down ? grad_out.t().mm(scaled_activation(forward)) : at::Tensor();
    return grads;
  }
  const at::Tensor upstream = grad_out.mm(weights.down.weight);  // [T, I]
  auto [grad_z, activation] = swiglu_backward(upstream, forward.z, needs.down || through_scale);
  at::Tensor grad_scale_logit;  // [T, 1]
  if (through_scale) {
    const at::Tensor slope = forward.scale * (1 - forward.scale);
    grad_scale_logit = (scale_grad(upstream, activation) * slope).to(grad_out.scalar_type());
  }
  if (scaled) {
    grad_z.mul_(forward.scale);
  }
  if (needs.down) {
    grads.down = grad_out.t().mm(scaled ? activation.mul_(forward.scale) : activation);
  }
  grads.gate = needs.gate ? left(grad_z).t().mm(n) : at::Tensor();
  grads.up = needs.up ? right(grad_z).t().mm(n) : at::Tensor();
  grads.output_gate = scaled && needs.output_gate ? sum_over_tokens(grad_scale_logit, n) : at::Tensor();
  if (needs.n) {
    grads.n = left(grad_z).mm(weights.gate.weight);
    grads.n.addmm_(right(grad_z), weights.up.weight);
    if (scaled) {
      grads.n.addmm_(grad_scale_logit, weights.output_gate);
    }
  }
  return grads;
}

}  // namespace phalanx
