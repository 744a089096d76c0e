// The head and the loss in one: cross-entropy of hidden W^T against labels, chunk by chunk, so that the logits [T, V] never exist.
//
// While a chunk of logits is at hand the forward pass also makes its gradient; backward only scales what is there. Rows without a
// label are skipped. In a chunk the logits have the dtype of `hidden`, as Transformers' head gives them; softmax, loss and sums are
// fp32 (fp64 for fp64), and the weight's gradient is summed over chunks in that type.
//
// Legend: T tokens, H hidden size, V vocabulary, C rows of a chunk.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace phalanx {

constexpr std::int64_t kIgnoredLabel = -100;

struct LinearCrossEntropyResult {
  at::Tensor
      loss_sum;  // [] fp32 or fp64, differentiable: sum of token_weight * loss over labels that are not -100
  at::Tensor token_loss;  // [T] fp32 or fp64, without weight; 0 where ignored
  at::Tensor correct;  // [T] bool: the label has the largest logit (of equals the first); false where ignored
  at::Tensor
      entropy;  // [T] of the predicted distribution, in nats; 0 where ignored; undefined unless asked for
};

// hidden [T, H] and weight [V, H] of one floating dtype, labels [T] int64, token_weights [T] or undefined. Labels may be on the CPU
// whatever the device: then no host ever waits for a GPU to learn which rows to skip. Saved for backward: the gradients of hidden
// [T, H] and weight [V, H], each only if it is needed. Throws Error for shapes or dtypes that do not fit, and for a label outside [0, V).
LinearCrossEntropyResult linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                              const at::Tensor& labels, const at::Tensor& token_weights,
                                              bool want_entropy = false);

// Rows of a chunk for a vocabulary: about 16 MB of logits on the CPU, 1.25 GB on a GPU (where each chunk costs a pass over the fp32
// gradient of the weight), and not fewer than a matrix product needs to run well.
std::int64_t cross_entropy_chunk_rows(std::int64_t vocab_size, std::int64_t element_bytes,
                                      bool on_gpu = false);

// Device operator. logits [C, V], labels [C] int64 all in [0, V), weights [C] fp32 (fp64) -> loss [C], correct [C] bool, entropy [C]
// (empty unless asked for). With `make_gradient` the logits are overwritten by weight * (softmax - onehot).
std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy_rows(const at::Tensor& logits,
                                                                  const at::Tensor& labels,
                                                                  const at::Tensor& weights,
                                                                  bool make_gradient, bool want_entropy);
std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy_rows_cpu(const at::Tensor& logits,
                                                                      const at::Tensor& labels,
                                                                      const at::Tensor& weights,
                                                                      bool make_gradient, bool want_entropy);
std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy_rows_cuda(const at::Tensor& logits,
                                                                       const at::Tensor& labels,
                                                                       const at::Tensor& weights,
                                                                       bool make_gradient, bool want_entropy);
std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy_rows_meta(const at::Tensor& logits,
                                                                       const at::Tensor& labels,
                                                                       const at::Tensor& weights,
                                                                       bool make_gradient, bool want_entropy);

// All logits at once in plain ATen operations: the oracle of the tests.
LinearCrossEntropyResult linear_cross_entropy_reference(const at::Tensor& hidden, const at::Tensor& weight,
                                                        const at::Tensor& labels,
                                                        const at::Tensor& token_weights);

}  // namespace phalanx
