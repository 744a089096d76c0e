// The router on the GPU: scores, top-k and weights of each token, and their gradient: launch contract.
//
// Legend: T tokens, E experts (1 to 512), K experts per token (1 to 32, at most E).
//
// One warp per token, everything in fp32 between the load of the logits and the store of the result. Nothing is allocated,
// nothing waits for the device, equal inputs give equal bits. Launchers throw ConfigError for an E or K out of range.
#pragma once
#include "kernels/common/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace phalanx::kernels {

struct RouterShape {
  std::int64_t tokens;  // T
  int experts;          // E
  int top_k;            // K
  Element element;      // of logits and weights
};

// From the scores of a token to its weights.
struct RouterRule {
  bool sigmoid;    // scores are sigmoids, not a softmax
  bool normalize;  // the K weights are divided by their sum
  float scale;     // and multiplied by this
};

struct RouterForwardParams {
  RouterShape shape;
  RouterRule rule;
  const void* logits;          // [T, E]
  const std::int32_t* replay;  // [T, K] in [0, E): the choice is given; nullptr: it is free
  void* weights;               // [T, K]
  std::int32_t* indices;       // [T, K] by falling score, of equals the lower index first; NaN comes last
};
void router_forward(const RouterForwardParams& params, cudaStream_t stream);

struct RouterBackwardParams {
  RouterShape shape;
  RouterRule rule;
  const float* grad_weights;    // [T, K]
  const void* grad_past;        // [T, E]: gradient that reached the logits by another way; nullptr: none
  const void* logits;           // [T, E]
  const std::int32_t* indices;  // [T, K]
  void* grad_logits;            // [T, E]
};
void router_backward(const RouterBackwardParams& params, cudaStream_t stream);

// For the auxiliary loss: per expert the number of choices and the sum of softmax scores (rounded to the element), summed
// over the tokens of one block; the caller adds the blocks in order.
struct LoadBalancingParams {
  RouterShape shape;
  const void* logits;  // [T, E]
  float* partials;     // [load_balancing_blocks(T), 2, E]: choices, then scores
};
int load_balancing_blocks(std::int64_t tokens);
void load_balancing_statistics(const LoadBalancingParams& params, cudaStream_t stream);

struct LoadBalancingGradParams {
  RouterShape shape;         // top_k is not used
  const float* grad_scores;  // [E], the same for every token
  const void* logits;        // [T, E]
  void* grad_logits;         // [T, E]
};
void load_balancing_backward(const LoadBalancingGradParams& params, cudaStream_t stream);

}  // namespace phalanx::kernels
