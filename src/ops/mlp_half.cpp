#include "ops/mlp_half.h"

#include "core/error.h"
#include "ops/block.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

#include <ATen/ops/mm.h>

namespace phalanx {
namespace {

enum Input { kX, kNorm, kGate, kUp, kDown, kInputs };
// The inputs are saved first, under their own numbers.
enum Saved { kRstd = kInputs, kZ };

void check_arguments(const at::Tensor& x, const MlpWeights& weights) {
  PHALANX_CHECK(x.dim() == 2, Error, "mlp_half: x has shape ", x.sym_sizes(), "; expected [tokens, hidden]");
  const c10::SymInt hidden = x.sym_size(1), width = weights.gate.weight.sym_size(0);
  const auto check = [&](const char* name, const at::Tensor& tensor, std::vector<c10::SymInt> shape) {
    PHALANX_CHECK(tensor.sym_sizes() == c10::SymIntArrayRef(shape), Error, "mlp_half: ", name, " has shape ",
                  tensor.sym_sizes(), "; expected ", c10::SymIntArrayRef(shape));
    PHALANX_CHECK(tensor.scalar_type() == x.scalar_type(), Error, "mlp_half: x is ", x.scalar_type(), " and ",
                  name, " is ", tensor.scalar_type(), "; convert one to the other's dtype");
  };
  check("norm", weights.norm, {hidden});
  check("gate", weights.gate.weight, {width, hidden});
  check("up", weights.up.weight, {width, hidden});
  check("down", weights.down.weight, {hidden, width});
  for (const LinearWeights* linear : {&weights.gate, &weights.up, &weights.down}) {
    PHALANX_CHECK(!linear->bias.defined(), Error, "mlp_half: gate, up and down take no bias");
  }
}

class MlpHalf final : public Block {
 public:
  explicit MlpHalf(double norm_eps) : norm_eps_(norm_eps) {}
  const char* name() const override { return "mlp_half"; }

  Tensors forward(const Tensors& in, Tensors& saved) override {
    const auto [n, rstd] = rms_norm_forward(in[kX], in[kNorm], norm_eps_);
    const auto width = in[kGate].sym_size(0);
    at::Tensor z = n.new_empty_symint({n.sym_size(0), 2 * width});  // gate and up side by side
    at::Tensor gate = z.narrow_symint(1, 0, width), up = z.narrow_symint(1, width, width);
    at::mm_out(gate, n, in[kGate].t());
    at::mm_out(up, n, in[kUp].t());
    saved = in;
    saved.insert(saved.end(), {rstd, z});
    return {in[kX].addmm(swiglu_forward(z), in[kDown].t())};
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>& needs) override {
    const at::Tensor grad_out = grads[0].contiguous();
    const auto [grad_z, a] = swiglu_backward(grad_out.mm(saved[kDown]), saved[kZ], needs[kDown]);
    const auto width = saved[kGate].sym_size(0);
    const at::Tensor grad_gate = grad_z.narrow_symint(1, 0, width),
                     grad_up = grad_z.narrow_symint(1, width, width);
    Tensors result(kInputs);
    if (needs[kDown]) {
      result[kDown] = grad_out.t().mm(a);
    }
    if (needs[kGate] || needs[kUp]) {
      const at::Tensor n = std::get<0>(rms_norm_forward(saved[kX], saved[kNorm], norm_eps_));
      result[kGate] = needs[kGate] ? grad_gate.t().mm(n) : at::Tensor();
      result[kUp] = needs[kUp] ? grad_up.t().mm(n) : at::Tensor();
    }
    if (needs[kX] || needs[kNorm]) {
      at::Tensor grad_n = grad_gate.mm(saved[kGate]);
      grad_n.addmm_(grad_up, saved[kUp]);
      std::tie(result[kX], result[kNorm]) =
          rms_norm_backward(grad_n, saved[kX], saved[kNorm], saved[kRstd], grad_out);
    }
    return result;
  }

 private:
  double norm_eps_;
};

}  // namespace

at::Tensor mlp_half(const at::Tensor& x, const MlpWeights& weights, double norm_eps) {
  check_arguments(x, weights);
  return apply(std::make_unique<MlpHalf>(norm_eps),
               {x, weights.norm, weights.gate.weight, weights.up.weight, weights.down.weight})[0];
}

}  // namespace phalanx
