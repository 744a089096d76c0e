// Private operators of ATen and what lies below it, which change between releases: named here and nowhere else.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace phalanx::aten {

// Matrix products of consecutive groups that end at `ends` [G] int32 (exclusive). fp32 or bf16; every stride other
// than 1 must be a multiple of 16 bytes.
//   a [R, M] and b [G, M, N]: rows are grouped                -> [R, N]; rows past ends[G - 1] are uninitialised
//   a [M, R] and b [R, N]: the contracted dimension is grouped -> [G, M, N]
at::Tensor grouped_mm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends);

// Attention of a batch without a [S, S] matrix in memory. q [B, h, S, d], k and v [B, g, S, d] with h a multiple of g; `mask` [S, S] is
// added to the scaled scores, without one the attention is causal. -> out [B, h, S, d] with the strides of q's tokens first,
// logsumexp [B, h, S]. CPU: fp32, fp64, bf16.
std::tuple<at::Tensor, at::Tensor> flash_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                                           const at::Tensor& v,
                                                           const std::optional<at::Tensor>& mask,
                                                           double scale);
// -> gradients of q, k and v.
std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& logsumexp, const std::optional<at::Tensor>& mask, double scale);

// From here on matrix products of this process have the same bits on any number of threads, at no measurable cost. MKL
// reads the setting (MKL_CBWR, which stays as it is where the user has set it) at its first product, so that this is to
// be called before one.
void make_products_reproducible();

// While it lives, matrix products of the calling thread run on that thread alone. MKL goes by a count of its own for
// each thread, even inside a parallel region, and cuts its sums by it.
class SingleThreadedProducts {
 public:
  SingleThreadedProducts();
  ~SingleThreadedProducts();
  SingleThreadedProducts(const SingleThreadedProducts&) = delete;
  SingleThreadedProducts& operator=(const SingleThreadedProducts&) = delete;

 private:
  int before_ = 0;
};

}  // namespace phalanx::aten
