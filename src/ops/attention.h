// Causal attention within documents: softmax(scale * q k^T) v, where a query sees the keys of its own document up to itself, and with
// a sliding window W only the last W of them. Groups of query heads share a key/value head.
//
// CPU: documents of equal length that follow each other run as one batch, the others one by one; no pair of documents is ever
// compared, and no mask is made without a window. GPU: one kernel for all documents of the batch, never a mask; which one is
// decided by choose_attention_kernel().
//
// Legend: T tokens, h query heads, g key/value heads, d head size.
#pragma once
#include "ops/sequence_layout.h"
#include "ops/specs.h"

#include <ATen/core/Tensor.h>

#include <tuple>

namespace phalanx {

// q [T, h, d], k and v [T, g, d]; only the last dimension must be dense.
struct AttentionInputs {
  at::Tensor q, k, v;
};

enum class AttentionKernel {
  kCpu,
  kCudnn,  // batches of equal length, bf16; the fastest on Hopper, its backward varies from run to run
  kFlash,  // documents of any length, bf16, window; repeatable where torch's deterministic algorithms are on
  kEfficient,  // documents of any length, window; the one for fp32
};

struct AttentionForward {
  AttentionKernel kernel = AttentionKernel::kCpu;
  at::Tensor out;        // [T, h, d] contiguous
  at::Tensor logsumexp;  // of the scaled scores, fp32 (fp64 for fp64): CPU [T, h], GPU as the kernel gives it
  at::Tensor seed, offset;  // GPU: what the kernel's backward asks for besides
};

// Not differentiable: the attention half calls both. Throws Error for shapes that do not fit, and on a GPU for a dtype or head
// size without a kernel.
AttentionForward attention_forward(const AttentionInputs& in, const AttentionSpec& spec,
                                   const SequenceLayout& layout);

// grad_out [T, h, d] -> gradients of q [T, h, d], k and v [T, g, d], contiguous.
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out,
                                                                  const AttentionInputs& in,
                                                                  const AttentionForward& forward,
                                                                  const AttentionSpec& spec,
                                                                  const SequenceLayout& layout);

// Documents of one length that follow each other.
struct DocumentRun {
  std::int64_t begin;   // first token
  std::int64_t count;   // documents
  std::int64_t length;  // of each
};
std::vector<DocumentRun> document_runs(const SequenceLayout& layout);

// The kernel of a GPU: kEfficient for fp32; else kCudnn when all documents have one length that is a multiple of 128 (cuDNN
// plans anew for each new shape, which takes longer than the attention), nothing is cut off by a window, and the run need not
// be repeatable; else kFlash. Throws Error for a dtype or head size that none of them takes.
AttentionKernel choose_attention_kernel(const AttentionSpec& spec, const SequenceLayout& layout,
                                        at::ScalarType dtype, bool deterministic);

// The two devices.
AttentionForward attention_forward_cpu(const AttentionInputs& in, const AttentionSpec& spec,
                                       const SequenceLayout& layout);
AttentionForward attention_forward_gpu(const AttentionInputs& in, const AttentionSpec& spec,
                                       const SequenceLayout& layout);
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_cpu(const at::Tensor& grad_out,
                                                                      const AttentionInputs& in,
                                                                      const AttentionForward& forward,
                                                                      const AttentionSpec& spec,
                                                                      const SequenceLayout& layout);
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_gpu(const at::Tensor& grad_out,
                                                                      const AttentionInputs& in,
                                                                      const AttentionForward& forward,
                                                                      const AttentionSpec& spec,
                                                                      const SequenceLayout& layout);

// With one mask over all tokens, in plain ATen operations, differentiable by torch's own autograd: the oracle of the tests.
at::Tensor attention_reference(const AttentionInputs& in, const AttentionSpec& spec,
                               const SequenceLayout& layout);

}  // namespace phalanx
