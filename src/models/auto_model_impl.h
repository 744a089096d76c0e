// What stands behind the public model.
#pragma once
#include "models/causal_lm.h"
#include "phalanx/auto_model.h"

namespace phalanx {

struct AutoModelForCausalLM::Impl {
  CausalLM model;
  ExpertsImplementation experts;
  double aux_loss_coef;
  Recompute recompute;
  std::shared_ptr<const TokenDispatcher> dispatcher;

  DecoderOptions decoder_options(const std::vector<at::Tensor>& routing) const {
    DecoderOptions options;
    options.experts = experts;
    options.recompute = recompute;
    options.replay_indices = routing;
    options.dispatcher = dispatcher;
    return options;
  }
};

}  // namespace phalanx
