#include "ops/mlp_half.h"

#include "core/error.h"
#include "ops/block.h"
#include "ops/gated_mlp.h"
#include "ops/rms_norm.h"

namespace phalanx {
namespace {

enum Input { kX, kNorm, kGate, kUp, kDown, kInputs };
// The inputs are saved first, under their own numbers.
enum Saved { kRstd = kInputs, kZ };

void check_arguments(const at::Tensor& x, const MlpWeights& weights) {
  check_gated_mlp("mlp_half", x, {weights.gate, weights.up, weights.down, {}});
  PHALANX_CHECK(weights.norm.dim() == 1 && weights.norm.sym_size(0) == x.sym_size(1) &&
                    weights.norm.scalar_type() == x.scalar_type(),
                Error, "mlp_half: norm is ", weights.norm.scalar_type(), " ", weights.norm.sym_sizes(),
                "; expected ", x.scalar_type(), " [", x.sym_size(1), "]");
}

class MlpHalf final : public Block {
 public:
  explicit MlpHalf(double norm_eps) : norm_eps_(norm_eps) {}
  const char* name() const override { return "mlp_half"; }

  Tensors forward(const Tensors& in, Tensors& saved) override {
    const auto [n, rstd] = rms_norm_forward(in[kX], in[kNorm], norm_eps_);
    const GatedMlpForward mlp = gated_mlp_forward(n, mlp_of(in), in[kX]);
    saved = in;
    saved.insert(saved.end(), {rstd, mlp.z});
    return {mlp.out};
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>& needs) override {
    const at::Tensor grad_out = grads[0].contiguous();
    const bool through_norm = needs[kX] || needs[kNorm];
    const at::Tensor n = needs[kGate] || needs[kUp]
                             ? std::get<0>(rms_norm_forward(saved[kX], saved[kNorm], norm_eps_))
                             : at::Tensor();
    const GatedMlpGrads mlp =
        gated_mlp_backward(grad_out, n, {{}, saved[kZ], {}}, mlp_of(saved),
                           {through_norm, needs[kGate], needs[kUp], needs[kDown], false});
    Tensors result = {{}, {}, mlp.gate, mlp.up, mlp.down};
    if (through_norm) {
      std::tie(result[kX], result[kNorm]) =
          rms_norm_backward(mlp.n, saved[kX], saved[kNorm], saved[kRstd], grad_out);
    }
    return result;
  }

 private:
  static GatedMlpWeights mlp_of(const Tensors& in) {
    return {{in[kGate], {}}, {in[kUp], {}}, {in[kDown], {}}, {}};
  }

  double norm_eps_;
};

}  // namespace

at::Tensor mlp_half(const at::Tensor& x, const MlpWeights& weights, double norm_eps) {
  check_arguments(x, weights);
  return apply(std::make_unique<MlpHalf>(norm_eps),
               {x, weights.norm, weights.gate.weight, weights.up.weight, weights.down.weight})[0];
}

}  // namespace phalanx
