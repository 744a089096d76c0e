#include "ops/moe_half.h"

#include "core/error.h"
#include "ops/expert_choice.h"
#include "ops/experts.h"
#include "ops/grouped_linear.h"
#include "ops/rms_norm.h"
#include "ops/router.h"
#include "ops/token_sum.h"

#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>

namespace phalanx {
namespace {

enum Input {
  kX,
  kNorm,
  kRouter,
  kGateUp,
  kDown,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kSharedOutputGate,
  kInputs
};
// The inputs are saved first, under their own numbers.
enum Saved {
  kRstd = kInputs,
  kLogits,
  kWeights,
  kIndices,
  kEnds,
  kChoices,
  kRows,
  kZ,
  kTokens,
  kMask,
  kSharedZ,
  kSharedScale,
  kAllSaved
};
enum Output { kOut, kCounts, kChosen, kRouterLogits };

void check_arguments(const at::Tensor& x, const MoeWeights& weights, const RouterSpec& spec,
                     std::int64_t local_experts) {
  PHALANX_CHECK(x.dim() == 2, Error, "moe_half: x has shape ", x.sym_sizes(), "; expected [tokens, hidden]");
  const auto check = [&](const char* name, const at::Tensor& tensor, std::vector<c10::SymInt> shape,
                         bool may_be_fp32 = false) {
    PHALANX_CHECK(tensor.sym_sizes() == c10::SymIntArrayRef(shape), Error, "moe_half: ", name, " has shape ",
                  tensor.sym_sizes(), "; expected ", c10::SymIntArrayRef(shape));
    PHALANX_CHECK(
        tensor.scalar_type() == x.scalar_type() || (may_be_fp32 && tensor.scalar_type() == at::kFloat), Error,
        "moe_half: x is ", x.scalar_type(), " and ", name, " is ", tensor.scalar_type(),
        "; convert one to the other's dtype");
  };
  const c10::SymInt hidden = x.sym_size(1), experts = spec.num_experts,
                    width = weights.experts.down.sym_size(-1);
  check("norm", weights.norm, {hidden});
  check("router", weights.router, {experts, hidden}, /*may_be_fp32=*/true);
  check("gate_up", weights.experts.gate_up, {local_experts, 2 * width, hidden});
  check("down", weights.experts.down, {local_experts, hidden, width});
  if (weights.shared.has_value()) {
    check_gated_mlp("moe_half: shared expert", x, *weights.shared);
  }
}

class MoeHalf final : public LayerHalf {
 public:
  MoeHalf(const RouterSpec& spec, double norm_eps, const MoeOptions& options, at::Tensor correction_bias)
      : spec_(spec), norm_eps_(norm_eps), options_(options), correction_bias_(std::move(correction_bias)) {}
  const char* name() const override { return "moe_half"; }

  Tensors forward(const Tensors& in, Tensors& saved) override {
    const auto [n, rstd] = rms_norm_forward(in[kX], in[kNorm], norm_eps_);
    const at::Tensor logits = logits_of(n, in);
    Routing routing = router_forward(logits, spec_, forced_choice(logits));
    routing.weights = routing.weights.to(n.scalar_type());
    const Served served = serve(n, routing);
    const ExpertGroups& groups = served.groups;
    ExpertsForward result =
        experts_forward(served.n, served.weights, groups, {in[kGateUp], in[kDown]},
                        spread() ? std::nullopt : std::optional(in[kX]), options_.experts);
    if (spread()) {
      result.out = options_.dispatcher->combine(result.out, plan_, in[kX]);
    }
    const GatedMlpForward shared = in[kSharedDown].defined() ? gated_mlp_forward(n, shared_of(in), result.out)
                                                             : GatedMlpForward{result.out, {}, {}};
    saved = in;
    saved.insert(saved.end(), {rstd, logits, served.weights, routing.indices, groups.ends, groups.choices,
                               groups.rows, result.z, groups.tokens, groups.mask, shared.z, shared.scale});
    Tensors outputs = {shared.out, served.counts, routing.indices};
    if (options_.want_router_logits) {
      outputs.push_back(logits);
    }
    return outputs;
  }

  // The indices stay: near-ties must not be decided twice.
  void drop(Tensors& saved, Recompute) const override {
    for (std::size_t part = kRstd; part < kAllSaved; ++part) {
      if (part != kIndices) {
        saved[part].reset();
      }
    }
  }

  void restore(Tensors& saved) override {
    at::Tensor n;
    std::tie(n, saved[kRstd]) = rms_norm_forward(saved[kX], saved[kNorm], norm_eps_);
    saved[kLogits] = logits_of(n, saved);
    Routing routing = router_forward(saved[kLogits], spec_, saved[kIndices]);
    routing.weights = routing.weights.to(n.scalar_type());
    const Served served = serve(n, routing);
    saved[kWeights] = served.weights;
    saved[kEnds] = served.groups.ends;
    saved[kChoices] = served.groups.choices;
    saved[kRows] = served.groups.rows;
    saved[kTokens] = served.groups.tokens;
    saved[kMask] = served.groups.mask;
    saved[kZ] =
        experts_pre_activations(served.n, served.groups, {saved[kGateUp], saved[kDown]}, options_.experts);
    if (saved[kSharedDown].defined()) {
      const GatedMlpForward shared = gated_mlp_pre_activations(n, shared_of(saved));
      saved[kSharedZ] = shared.z;
      saved[kSharedScale] = shared.scale;
    }
  }

  // Nothing comes after this half in its layer.
  at::Tensor output(const Tensors&) const override { fail("moe_half: its output is not made a second time"); }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>& needs) override {
    const at::Tensor grad_out =
        grads[kOut].defined() ? grads[kOut].contiguous() : saved[kX].new_zeros(saved[kX].sizes());
    const at::Tensor n = std::get<0>(rms_norm_forward(saved[kX], saved[kNorm], norm_eps_));
    const bool through_norm = needs[kX] || needs[kNorm];
    const bool through_router = through_norm || needs[kRouter];
    ExpertsGrads experts =
        backward_experts(saved, grad_out, n, {through_norm, through_router, needs[kGateUp], needs[kDown]});
    Tensors result(kInputs);
    result[kGateUp] = experts.gate_up;
    result[kDown] = experts.down;
    if (saved[kSharedDown].defined()) {
      backward_shared(saved, grad_out, n, needs, experts.x, result);
    }
    if (through_router) {
      const at::Tensor grad_logits =
          router_backward(experts.weights, grad_past_weights(grads), saved[kLogits], saved[kIndices], spec_);
      if (needs[kRouter]) {
        result[kRouter] = sum_over_tokens(grad_logits, n.to(grad_logits.scalar_type()));
      }
      if (through_norm) {
        add_router_part(experts.x, grad_logits, saved[kRouter]);
        std::tie(result[kX], result[kNorm]) =
            rms_norm_backward(experts.x, saved[kX], saved[kNorm], saved[kRstd], grad_out);
      }
    }
    return result;
  }

 private:
  static at::Tensor logits_of(const at::Tensor& n, const Tensors& in) {  // [T, E]
    return n.to(in[kRouter].scalar_type()).mm(in[kRouter].t());
  }

  // The tokens that this rank's experts compute: its own, or those that have come from all ranks.
  struct Served {
    at::Tensor n, weights;
    ExpertGroups groups;
    at::Tensor counts;  // [E] choices of this rank's tokens
  };

  bool spread() const { return options_.dispatcher != nullptr; }

  Served serve(const at::Tensor& n, const Routing& routing) {
    if (!spread()) {
      const ExpertGroups groups = group_by_expert(routing.indices, spec_.num_experts);
      return {n, routing.weights, groups, groups.counts};
    }
    const TokenDispatcher& dispatcher = *options_.dispatcher;
    plan_ = dispatcher.plan(routing.indices, spec_.num_experts);
    const ExpertRange range = dispatcher.range(spec_.num_experts);
    const at::Tensor both = dispatcher.dispatch(at::cat({n, routing.weights}, 1), plan_);  // [N, H + K]
    const std::int64_t hidden = n.size(1);
    return {both.narrow(1, 0, hidden).contiguous(), both.narrow(1, hidden, spec_.top_k).contiguous(),
            group_by_local_expert(plan_.choices, range.first, range.count),
            at::bincount(routing.indices.flatten(), {}, spec_.num_experts)};
  }

  // Where tokens have come from other ranks, their rows of n come again instead of being kept.
  ExpertsGrads backward_experts(const Tensors& saved, const at::Tensor& grad_out, const at::Tensor& n,
                                const ExpertsNeeds& needs) const {
    const ExpertGroups groups{{}, saved[kEnds], saved[kChoices], saved[kRows], saved[kTokens], saved[kMask]};
    const ExpertWeights weights{saved[kGateUp], saved[kDown]};
    if (!spread()) {
      return experts_backward(grad_out, n, saved[kWeights], groups, saved[kZ], weights, needs,
                              options_.experts);
    }
    const TokenDispatcher& dispatcher = *options_.dispatcher;
    const std::int64_t hidden = n.size(1);
    const at::Tensor both = dispatcher.dispatch(at::cat({grad_out, n}, 1), plan_);  // [N, 2H]
    ExpertsGrads grads =
        experts_backward(both.narrow(1, 0, hidden).contiguous(), both.narrow(1, hidden, hidden).contiguous(),
                         saved[kWeights], groups, saved[kZ], weights, needs, options_.experts);
    for (at::Tensor* gradient : {&grads.x, &grads.weights}) {
      if (gradient->defined()) {
        *gradient = dispatcher.combine(*gradient, plan_, std::nullopt);
      }
    }
    return grads;
  }

  static GatedMlpWeights shared_of(const Tensors& in) {
    return {{in[kSharedGate], {}}, {in[kSharedUp], {}}, {in[kSharedDown], {}}, in[kSharedOutputGate]};
  }

  // The routing that the caller or a correction bias and groups ask for; undefined: the top_k of the scores.
  at::Tensor forced_choice(const at::Tensor& logits) const {
    return options_.replay_indices.defined() ? options_.replay_indices
                                             : choose_experts(logits, spec_, correction_bias_);
  }

  static void add_router_part(at::Tensor& grad_n, const at::Tensor& grad_logits, const at::Tensor& router) {
    if (grad_n.scalar_type() == router.scalar_type()) {
      grad_n.addmm_(grad_logits, router);
    } else {
      grad_n.add_(grad_logits.mm(router));
    }
  }

  // Adds to the gradient of n, where it is defined.
  static void backward_shared(const Tensors& saved, const at::Tensor& grad_out, const at::Tensor& n,
                              const std::vector<bool>& needs, at::Tensor& grad_n, Tensors& result) {
    const GatedMlpNeeds shared_needs{grad_n.defined(), needs[kSharedGate], needs[kSharedUp],
                                     needs[kSharedDown], needs[kSharedOutputGate]};
    const GatedMlpGrads shared = gated_mlp_backward(grad_out, n, {{}, saved[kSharedZ], saved[kSharedScale]},
                                                    shared_of(saved), shared_needs);
    result[kSharedGate] = shared.gate;
    result[kSharedUp] = shared.up;
    result[kSharedDown] = shared.down;
    result[kSharedOutputGate] = shared.output_gate;
    if (grad_n.defined()) {
      grad_n.add_(shared.n);
    }
  }

  std::optional<at::Tensor> grad_past_weights(const Tensors& grads) const {
    const bool given = options_.want_router_logits && grads[kRouterLogits].defined();
    return given ? std::optional(grads[kRouterLogits]) : std::nullopt;
  }

  RouterSpec spec_;
  double norm_eps_;
  MoeOptions options_;
  at::Tensor correction_bias_;
  DispatchPlan plan_;  // of the forward pass, for the backward pass
};

}  // namespace

HalfCall moe_half_call(const at::Tensor& x, const MoeWeights& weights, const RouterSpec& spec,
                       double norm_eps, const MoeOptions& options) {
  check_arguments(x, weights, spec,
                  options.dispatcher ? options.dispatcher->range(spec.num_experts).count : spec.num_experts);
  MoeOptions chosen = options;
  chosen.experts = choose_experts_implementation(options.experts, weights.experts.gate_up);
  const GatedMlpWeights shared = weights.shared.value_or(GatedMlpWeights{});
  return {std::make_unique<MoeHalf>(spec, norm_eps, chosen, weights.correction_bias),
          {x, weights.norm, weights.router, weights.experts.gate_up, weights.experts.down, shared.gate.weight,
           shared.up.weight, shared.down.weight, shared.output_gate}};
}

MoeResult moe_result(const Tensors& outputs) {
  return {outputs[kOut], outputs.size() > kRouterLogits ? outputs[kRouterLogits] : at::Tensor(),
          outputs[kCounts], outputs[kChosen]};
}

MoeResult moe_half(const at::Tensor& x, const MoeWeights& weights, const RouterSpec& spec, double norm_eps,
                   const MoeOptions& options) {
  return moe_result(run_half(moe_half_call(x, weights, spec, norm_eps, options)));
}

}  // namespace phalanx
