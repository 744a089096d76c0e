// The forward pass of every decoder family, run from its ModelSpec: embedding, layers of an attention half and a feed-forward
// half, final norm. The loss and its head stand apart, because nobody needs logits to train.
//
// Legend: T tokens of all documents laid end to end, H hidden size, E experts, K experts per token.
#pragma once
#include "models/parameter_set.h"
#include "ops/recompute.h"
#include "ops/sequence_layout.h"
#include "ops/token_dispatch.h"

#include <optional>
#include <vector>

namespace phalanx {

struct DecoderOptions {
  ExpertsImplementation experts = ExpertsImplementation::kAuto;
  Recompute recompute = Recompute::kNone;
  bool want_router_logits = false;         // for the auxiliary loss
  std::vector<at::Tensor> replay_indices;  // [T, K] per layer: forces the routing; empty: the router decides
  std::shared_ptr<const TokenDispatcher> dispatcher = nullptr;  // where the experts are spread over ranks
};

struct DecoderOutput {
  at::Tensor hidden;                      // [T, H] after the final norm
  std::vector<at::Tensor> router_logits;  // [T, E] per expert layer, when asked for
  std::vector<at::Tensor> expert_counts;  // [E] int64 per expert layer: tokens each expert received
};

// tokens [T] int64, on the CPU (nothing waits for a GPU then) or the device of the parameters, where `layout` is. Differentiable
// in the parameters. Throws Error for a token outside the vocabulary.
DecoderOutput decoder_forward(const ModelSpec& spec, const ParameterSet& parameters, const at::Tensor& tokens,
                              const SequenceLayout& layout, const DecoderOptions& options);

// The head's weight [V, H]: its own, or the embedding's when tied.
const at::Tensor& head_weight(const ModelSpec& spec, const ParameterSet& parameters);

struct LossOptions {
  DecoderOptions decoder;
  double aux_loss_coef = 0.0;  // of the load-balancing loss; 0: not computed
  double aux_loss_share =
      1.0;  // of this micro-batch in the step: the auxiliary loss is averaged over micro-batches
  double loss_divisor = 1.0;  // supervised tokens of the whole step
};

struct LossOutput {
  at::Tensor
      objective;  // [] differentiable: loss_sum / loss_divisor + aux_loss_coef * aux_loss_share * aux_loss
  at::Tensor loss_sum;  // [] over supervised tokens, detached
  at::Tensor aux_loss;  // [] or undefined
  at::Tensor correct;   // [T] bool: the most likely token is the label
  std::vector<at::Tensor> expert_counts;
};

// labels [T] int64, already shifted: the token to predict at each position, or -100; on the CPU or the parameters' device.
LossOutput decoder_loss(const ModelSpec& spec, const ParameterSet& parameters, const at::Tensor& tokens,
                        const at::Tensor& labels, const SequenceLayout& layout, const LossOptions& options);

}  // namespace phalanx
