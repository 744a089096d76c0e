#include "ops/aten_compat.h"
#include "ops/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <limits>
#include <optional>

namespace phalanx {
namespace {

// The tokens of a run in the shape attention kernels take: [T, heads, d] -> [documents, heads, length, d], a view.
at::Tensor of_run(const at::Tensor& tokens, const DocumentRun& run) {
  return tokens.narrow(0, run.begin, run.count * run.length)
      .unflatten(0, {run.count, run.length})
      .transpose(1, 2);
}

// [documents, heads, length, d] -> [tokens, heads, d]
at::Tensor to_tokens(const at::Tensor& batch) { return batch.transpose(1, 2).flatten(0, 1); }

// What is added to the scores when a window cuts off keys, else nothing.
std::optional<at::Tensor> window_mask(const AttentionSpec& spec, const DocumentRun& run,
                                      const at::Tensor& q) {
  if (!spec.sliding_window.has_value() || *spec.sliding_window >= run.length) {
    return std::nullopt;
  }
  const at::Tensor position = at::arange(run.length, q.options().dtype(at::kLong));
  const at::Tensor distance = position.unsqueeze(1) - position.unsqueeze(0);
  const at::Tensor hidden = distance.lt(0).logical_or(distance.ge(*spec.sliding_window));
  return q.new_zeros({run.length, run.length}).masked_fill(hidden, -std::numeric_limits<double>::infinity());
}

}  // namespace

AttentionForward attention_forward_cpu(const AttentionInputs& in, const AttentionSpec& spec,
                                       const SequenceLayout& layout) {
  const std::vector<DocumentRun> runs = document_runs(layout);
  AttentionForward result{AttentionKernel::kCpu, {}, {}, {}, {}};
  for (const DocumentRun& run : runs) {
    const auto [out, logsumexp] = aten::flash_attention_forward(
        of_run(in.q, run), of_run(in.k, run), of_run(in.v, run), window_mask(spec, run, in.q), spec.scale);
    const at::Tensor run_out = to_tokens(out);                                 // [tokens, h, d]
    const at::Tensor run_logsumexp = logsumexp.transpose(1, 2).flatten(0, 1);  // [tokens, h]
    if (runs.size() == 1) {
      return {AttentionKernel::kCpu, run_out.contiguous(), run_logsumexp.contiguous(), {}, {}};
    }
    if (!result.out.defined()) {
      result.out = in.q.new_empty(in.q.sizes());
      result.logsumexp = run_logsumexp.new_empty({layout.tokens(), spec.num_heads});
    }
    result.out.narrow(0, run.begin, run_out.size(0)).copy_(run_out);
    result.logsumexp.narrow(0, run.begin, run_out.size(0)).copy_(run_logsumexp);
  }
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_cpu(const at::Tensor& grad_out,
                                                                      const AttentionInputs& in,
                                                                      const AttentionForward& forward,
                                                                      const AttentionSpec& spec,
                                                                      const SequenceLayout& layout) {
  const std::vector<DocumentRun> runs = document_runs(layout);
  at::Tensor grad_q, grad_k, grad_v;
  for (const DocumentRun& run : runs) {
    const at::Tensor logsumexp =
        forward.logsumexp.narrow(0, run.begin, run.count * run.length).unflatten(0, {run.count, run.length});
    const auto [dq, dk, dv] = aten::flash_attention_backward(
        of_run(grad_out, run), of_run(in.q, run), of_run(in.k, run), of_run(in.v, run),
        of_run(forward.out, run), logsumexp.transpose(1, 2), window_mask(spec, run, in.q), spec.scale);
    if (runs.size() == 1) {
      return {to_tokens(dq).contiguous(), to_tokens(dk).contiguous(), to_tokens(dv).contiguous()};
    }
    if (!grad_q.defined()) {
      grad_q = in.q.new_empty(in.q.sizes());
      grad_k = in.k.new_empty(in.k.sizes());
      grad_v = in.v.new_empty(in.v.sizes());
    }
    grad_q.narrow(0, run.begin, run.count * run.length).copy_(to_tokens(dq));
    grad_k.narrow(0, run.begin, run.count * run.length).copy_(to_tokens(dk));
    grad_v.narrow(0, run.begin, run.count * run.length).copy_(to_tokens(dv));
  }
  return {grad_q, grad_k, grad_v};
}

}  // namespace phalanx
