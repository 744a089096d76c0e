#include "ops/aten_compat.h"

#include "core/error.h"

#include <ATen/ops/_grouped_mm_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <cstdlib>

// Part of torch builds with MKL; weak, because others have none.
extern "C" [[gnu::weak]] int MKL_Set_Num_Threads_Local(int threads);

namespace phalanx::aten {

at::Tensor grouped_mm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends) {
  return at::_ops::_grouped_mm::call(a, b, ends, /*bias=*/std::nullopt, /*out_dtype=*/std::nullopt);
}

std::tuple<at::Tensor, at::Tensor> flash_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                                           const at::Tensor& v,
                                                           const std::optional<at::Tensor>& mask,
                                                           double scale) {
  PHALANX_CHECK(!q.is_cuda(), Error, "attention is not built for ", q.device(), "; run on the CPU");
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
