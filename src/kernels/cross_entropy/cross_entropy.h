// Cross-entropy of rows of logits and its gradient in place, on the GPU: launch contract.
//
// Legend: C rows, V vocabulary.
//
// Everything is fp32 between loads and stores. Nothing is allocated, nothing waits for the device, equal inputs give equal bits.
#pragma once
#include "kernels/common/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace phalanx::kernels {

// A label outside [0, V) gives NaN as loss, entropy and gradient of its row: the host, which could name it, does not wait.
struct CrossEntropyParams {
  void* logits;                // [C, V]; with make_gradient replaced by weight * (softmax - onehot)
  const std::int64_t* labels;  // [C] in [0, V)
  const float* weights;        // [C]
  float* loss;                 // [C] without weight
  bool* correct;               // [C] the label has the largest logit, of equals the first
  float* entropy;              // [C] of the predicted distribution, in nats; nullptr: not wanted
  std::int64_t rows;           // C
  std::int64_t vocab;          // V
  bool make_gradient;
  Element element;  // of logits
};
void cross_entropy_rows(const CrossEntropyParams& params, cudaStream_t stream);

}  // namespace phalanx::kernels
