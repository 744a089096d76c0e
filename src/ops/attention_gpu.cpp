#include "core/error.h"
#include "ops/aten_compat.h"
#include "ops/attention.h"

namespace phalanx {
namespace {

// How wide a window is, when it cuts off anything.
std::optional<std::int64_t> effective_window(const AttentionSpec& spec, const SequenceLayout& layout) {
  return spec.sliding_window.has_value() && *spec.sliding_window < layout.max_length ? spec.sliding_window
                                                                                     : std::nullopt;
}

// [T, heads, d] -> [B, heads, S, d], a view.
at::Tensor as_batch(const at::Tensor& tokens, const SequenceLayout& layout) {
  return tokens.unflatten(0, {-1, layout.max_length}).transpose(1, 2);
}

at::Tensor as_tokens(const at::Tensor& batch) { return batch.transpose(1, 2).flatten(0, 1); }

// The kernel for fp32 wants as many key/value heads as query heads: [T, g, d] -> [T, h, d].
at::Tensor repeat_heads(const at::Tensor& kv, std::int64_t heads) {
  const std::int64_t times = heads / kv.size(1);
  return times == 1 ? kv : kv.unsqueeze(2).expand({-1, -1, times, -1}).flatten(1, 2);
}

at::Tensor sum_heads(const at::Tensor& grad, std::int64_t kv_heads) {
  return grad.size(1) == kv_heads ? grad : grad.unflatten(1, {kv_heads, -1}).sum(2);
}

aten::VarlenSpec varlen_spec(const AttentionSpec& spec, const SequenceLayout& layout) {
  return {layout.device_cu_seqlens, layout.max_length, effective_window(spec, layout), spec.scale};
}

}  // namespace

AttentionKernel choose_attention_kernel(const AttentionSpec& spec, const SequenceLayout& layout,
                                        at::ScalarType dtype, bool deterministic) {
  constexpr std::int64_t kPlannedLengths = 128;
  PHALANX_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, Error, "attention on a GPU computes in ",
                "float32 and bfloat16; these inputs are ", dtype, ". Use one of them, or the CPU");
  PHALANX_CHECK(spec.head_dim % 8 == 0 && spec.head_dim <= 256, Error,
                "attention on a GPU needs a head size ",
                "that is a multiple of 8 and at most 256; this one is ", spec.head_dim);
  if (dtype == at::kFloat) {
    return AttentionKernel::kEfficient;
  }
  const bool plain = document_runs(layout).size() == 1 && layout.max_length % kPlannedLengths == 0 &&
                     spec.head_dim <= 128 && !effective_window(spec, layout).has_value();
  return plain && !deterministic ? AttentionKernel::kCudnn : AttentionKernel::kFlash;
}

AttentionForward attention_forward_gpu(const AttentionInputs& in, const AttentionSpec& spec,
                                       const SequenceLayout& layout) {
  AttentionForward result;
  result.kernel = choose_attention_kernel(spec, layout, in.q.scalar_type(), aten::deterministic());
  aten::GpuAttention out;
  switch (result.kernel) {
    case AttentionKernel::kCudnn:
      out = aten::cudnn_attention_forward(as_batch(in.q, layout), as_batch(in.k, layout),
                                          as_batch(in.v, layout), spec.scale);
      out.out = as_tokens(out.out);
      break;
    case AttentionKernel::kFlash:
      out = aten::flash_varlen_forward(in.q, in.k, in.v, varlen_spec(spec, layout));
      break;
    default:
      out = aten::efficient_varlen_forward(in.q, repeat_heads(in.k, spec.num_heads),
                                           repeat_heads(in.v, spec.num_heads), varlen_spec(spec, layout));
  }
  result.out = out.out.contiguous();
  result.logsumexp = out.logsumexp;
  result.seed = out.seed;
  result.offset = out.offset;
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_gpu(const at::Tensor& grad_out,
                                                                      const AttentionInputs& in,
                                                                      const AttentionForward& forward,
                                                                      const AttentionSpec& spec,
                                                                      const SequenceLayout& layout) {
  aten::GpuAttention saved{forward.out, forward.logsumexp, forward.seed, forward.offset};
  at::Tensor dq, dk, dv;
  switch (forward.kernel) {
    case AttentionKernel::kCudnn:
      saved.out = as_batch(forward.out, layout);
      std::tie(dq, dk, dv) =
          aten::cudnn_attention_backward(as_batch(grad_out, layout), as_batch(in.q, layout),
                                         as_batch(in.k, layout), as_batch(in.v, layout), saved, spec.scale);
      return {as_tokens(dq).contiguous(), as_tokens(dk).contiguous(), as_tokens(dv).contiguous()};
    case AttentionKernel::kFlash:
      std::tie(dq, dk, dv) =
          aten::flash_varlen_backward(grad_out, in.q, in.k, in.v, saved, varlen_spec(spec, layout));
      return {dq.contiguous(), dk.contiguous(), dv.contiguous()};
    default:
      std::tie(dq, dk, dv) = aten::efficient_varlen_backward(
          grad_out, in.q, repeat_heads(in.k, spec.num_heads), repeat_heads(in.v, spec.num_heads), saved,
          varlen_spec(spec, layout));
      return {dq.contiguous(), sum_heads(dk, spec.num_kv_heads).contiguous(),
              sum_heads(dv, spec.num_kv_heads).contiguous()};
  }
}

}  // namespace phalanx
