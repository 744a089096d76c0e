#include "ops/attention.h"

#include "core/error.h"

namespace phalanx {
namespace {

void check_arguments(const AttentionInputs& in, const AttentionSpec& spec, const SequenceLayout& layout) {
  const auto check = [&](const char* name, const at::Tensor& tensor, std::int64_t heads) {
    PHALANX_CHECK(tensor.dim() == 3 && tensor.size(0) == layout.tokens() && tensor.size(1) == heads &&
                      tensor.size(2) == spec.head_dim && tensor.scalar_type() == in.q.scalar_type(),
                  Error, "attention: ", name, " is ", tensor.sizes(), " ", tensor.scalar_type(),
                  "; expected [", layout.tokens(), ", ", heads, ", ", spec.head_dim, "] ",
                  in.q.scalar_type());
  };
  check("q", in.q, spec.num_heads);
  check("k", in.k, spec.num_kv_heads);
  check("v", in.v, spec.num_kv_heads);
}

}  // namespace

std::vector<DocumentRun> document_runs(const SequenceLayout& layout) {
  std::vector<DocumentRun> runs;
  for (std::size_t i = 0; i + 1 < layout.cu_seqlens.size(); ++i) {
    const std::int64_t begin = layout.cu_seqlens[i];
    const std::int64_t length = layout.cu_seqlens[i + 1] - begin;
    if (!runs.empty() && runs.back().length == length) {
      ++runs.back().count;
    } else {
      runs.push_back({begin, 1, length});
    }
  }
  return runs;
}

AttentionForward attention_forward(const AttentionInputs& in, const AttentionSpec& spec,
                                   const SequenceLayout& layout) {
  check_arguments(in, spec, layout);
  return in.q.is_cuda() ? attention_forward_gpu(in, spec, layout) : attention_forward_cpu(in, spec, layout);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out,
                                                                  const AttentionInputs& in,
                                                                  const AttentionForward& forward,
                                                                  const AttentionSpec& spec,
                                                                  const SequenceLayout& layout) {
  return in.q.is_cuda() ? attention_backward_gpu(grad_out, in, forward, spec, layout)
                        : attention_backward_cpu(grad_out, in, forward, spec, layout);
}

}  // namespace phalanx
