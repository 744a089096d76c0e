#include "ops/aten_compat.h"

#include <ATen/Context.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_grouped_mm_ops.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/addmm_ops.h>

#include <cstdlib>

// Part of torch builds with MKL; weak, because others have none.
extern "C" [[gnu::weak]] int MKL_Set_Num_Threads_Local(int threads);

namespace phalanx::aten {
namespace {

constexpr std::int64_t kCausalFromTopLeft = 1;  // of the memory-efficient kernels' mask types

// A window as flash attention counts it: keys before the query, keys after it.
std::optional<std::int64_t> keys_before(const VarlenSpec& spec) {
  return spec.window.has_value() ? std::optional(*spec.window - 1) : std::nullopt;
}
std::optional<std::int64_t> window_end(const VarlenSpec& spec) {
  return spec.window.has_value() ? std::optional<std::int64_t>(0) : std::nullopt;
}

}  // namespace

at::Tensor grouped_mm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends) {
  return at::_ops::_grouped_mm::call(a, b, ends, /*bias=*/std::nullopt, /*out_dtype=*/std::nullopt);
}

std::tuple<at::Tensor, at::Tensor> flash_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                                           const at::Tensor& v,
                                                           const std::optional<at::Tensor>& mask,
                                                           double scale) {
  return at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0.0,
                                                         /*is_causal=*/!mask.has_value(), mask, scale);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& logsumexp, const std::optional<at::Tensor>& mask, double scale) {
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad_out, q, k, v, out, logsumexp,
      /*dropout_p=*/0.0, /*is_causal=*/!mask.has_value(), mask, scale);
}

GpuAttention cudnn_attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     double scale) {
  auto result =
      at::_scaled_dot_product_cudnn_attention(q, k, v, /*attn_bias=*/std::nullopt,
                                              /*compute_log_sumexp=*/true, /*dropout_p=*/0.0,
                                              /*is_causal=*/true, /*return_debug_mask=*/false, scale);
  return {std::get<0>(result), std::get<1>(result), std::get<6>(result), std::get<7>(result)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_attention_backward(
    const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const GpuAttention& forward, double scale) {
  return at::_scaled_dot_product_cudnn_attention_backward(
      grad_out, q, k, v, forward.out, forward.logsumexp, forward.seed, forward.offset, /*attn_bias=*/{},
      /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, q.size(2), k.size(2), /*dropout_p=*/0.0, /*is_causal=*/true, scale);
}

GpuAttention flash_varlen_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const VarlenSpec& spec) {
  auto [out, logsumexp, seed, offset, _] = at::_flash_attention_forward(
      q, k, v, spec.cu_seqlens, spec.cu_seqlens, spec.max_length, spec.max_length, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*return_debug_mask=*/false, spec.scale, keys_before(spec), window_end(spec));
  return {out, logsumexp, seed, offset};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_varlen_backward(const at::Tensor& grad_out,
                                                                     const at::Tensor& q, const at::Tensor& k,
                                                                     const at::Tensor& v,
                                                                     const GpuAttention& forward,
                                                                     const VarlenSpec& spec) {
  return at::_flash_attention_backward(grad_out, q, k, v, forward.out, forward.logsumexp, spec.cu_seqlens,
                                       spec.cu_seqlens, spec.max_length, spec.max_length, /*dropout_p=*/0.0,
                                       /*is_causal=*/true, forward.seed, forward.offset, spec.scale,
                                       keys_before(spec), window_end(spec));
}

GpuAttention efficient_varlen_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const VarlenSpec& spec) {
  auto result = at::_efficient_attention_forward(
      q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), /*bias=*/std::nullopt, spec.cu_seqlens, spec.cu_seqlens,
      spec.max_length, spec.max_length, /*dropout_p=*/0.0, kCausalFromTopLeft, /*compute_log_sumexp=*/true,
      spec.scale, /*seqlen_k=*/std::nullopt, spec.window);
  return {std::get<0>(result).squeeze(0), std::get<1>(result), std::get<2>(result), std::get<3>(result)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> efficient_varlen_backward(
    const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const GpuAttention& forward, const VarlenSpec& spec) {
  auto [dq, dk, dv, _] = at::_efficient_attention_backward(
      grad_out.unsqueeze(0), q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), /*bias=*/std::nullopt,
      forward.out.unsqueeze(0), spec.cu_seqlens, spec.cu_seqlens, spec.max_length, spec.max_length,
      forward.logsumexp, /*dropout_p=*/0.0, forward.seed, forward.offset, kCausalFromTopLeft,
      /*bias_requires_grad=*/false, spec.scale, /*num_splits_key=*/1, spec.window);
  return {dq.squeeze(0), dk.squeeze(0), dv.squeeze(0)};
}

bool deterministic() { return at::globalContext().deterministicAlgorithms(); }

void make_deterministic() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

void add_product_(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool overwrite) {
  at::_ops::addmm_dtype_out::call(sum, a, b, sum.scalar_type(), /*beta=*/overwrite ? 0 : 1, /*alpha=*/1, sum);
}

void make_products_reproducible() { ::setenv("MKL_CBWR", "AUTO,STRICT", /*overwrite=*/0); }

SingleThreadedProducts::SingleThreadedProducts() {
  if (MKL_Set_Num_Threads_Local != nullptr) {
    before_ = MKL_Set_Num_Threads_Local(1);
  }
}

SingleThreadedProducts::~SingleThreadedProducts() {
  if (MKL_Set_Num_Threads_Local != nullptr) {
    MKL_Set_Num_Threads_Local(before_);
  }
}

}  // namespace phalanx::aten
