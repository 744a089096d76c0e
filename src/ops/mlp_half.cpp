#include "ops/mlp_half.h"

#include "core/error.h"
#include "ops/gated_mlp.h"
#include "ops/rms_norm.h"

namespace phalanx {
namespace {

enum Input { kX, kNorm, kGate, kUp, kDown, kInputs };
// The inputs are saved first, under their own numbers.
enum Saved { kRstd = kInputs, kZ, kAllSaved };

void check_arguments(const at::Tensor& x, const MlpWeights& weights) {
  check_gated_mlp("mlp_half", x, {weights.gate, weights.up, weights.down, {}});
  PHALANX_CHECK(weights.norm.dim() == 1 && weights.norm.sym_size(0) == x.sym_size(1) &&
                    weights.norm.scalar_type() == x.scalar_type(),
                Error, "mlp_half: norm is ", weights.norm.scalar_type(), " ", weights.norm.sym_sizes(),
                "; expected ", x.scalar_type(), " [", x.sym_size(1), "]");
}

class MlpHalf final : public LayerHalf {
 public:
  explicit MlpHalf(double norm_eps) : norm_eps_(norm_eps) {}
  const char* name() const override { return "mlp_half"; }

  Tensors forward(const Tensors& in, Tensors& saved) override {
    saved = in;
    saved.resize(kAllSaved);
    restore(saved);
    return {output(saved)};
  }

  void drop(Tensors& saved, Recompute) const override {
    saved[kRstd].reset();
    saved[kZ].reset();
  }

  void restore(Tensors& saved) override {
    at::Tensor n;
    std::tie(n, saved[kRstd]) = rms_norm_forward(saved[kX], saved[kNorm], norm_eps_);
    saved[kZ] = gated_mlp_pre_activations(n, mlp_of(saved)).z;
  }

  at::Tensor output(const Tensors& saved) const override {
    return gated_mlp_output({{}, saved[kZ], {}}, mlp_of(saved), saved[kX]);
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

HalfCall mlp_half_call(const at::Tensor& x, const MlpWeights& weights, double norm_eps) {
  check_arguments(x, weights);
  return {std::make_unique<MlpHalf>(norm_eps),
          {x, weights.norm, weights.gate.weight, weights.up.weight, weights.down.weight}};
}

at::Tensor mlp_half(const at::Tensor& x, const MlpWeights& weights, double norm_eps) {
  return run_half(mlp_half_call(x, weights, norm_eps))[0];
}

}  // namespace phalanx
