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

// Attention on a GPU, always causal; q [.., h, .., d], k and v [.., g, .., d]. `seed` and `offset` belong to a dropout that is
// off; the kernels want them back.
struct GpuAttention {
  at::Tensor out, logsumexp, seed, offset;
};

// cuDNN, bf16. q [B, h, S, d], k and v [B, g, S, d] of any strides with a dense last dimension.
GpuAttention cudnn_attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     double scale);
std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_attention_backward(
    const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const GpuAttention& forward, double scale);

// Documents end to end: q [T, h, d], k and v [T, g, d].
struct VarlenSpec {
  at::Tensor cu_seqlens;  // [documents + 1] int32 on the GPU
  std::int64_t max_length;
  std::optional<std::int64_t> window;  // keys a query sees, itself included
  double scale;
};
// Flash attention, bf16. Its backward repeats to the bit only where deterministic() holds.
GpuAttention flash_varlen_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const VarlenSpec& spec);
std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_varlen_backward(const at::Tensor& grad_out,
                                                                     const at::Tensor& q, const at::Tensor& k,
                                                                     const at::Tensor& v,
                                                                     const GpuAttention& forward,
                                                                     const VarlenSpec& spec);
// Memory-efficient attention, fp32 and bf16; g = h.
GpuAttention efficient_varlen_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const VarlenSpec& spec);
std::tuple<at::Tensor, at::Tensor, at::Tensor> efficient_varlen_backward(
    const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const GpuAttention& forward, const VarlenSpec& spec);

// torch's setting, as torch.use_deterministic_algorithms has it.
bool deterministic();
// Turns it on for the process, without filling every new tensor, which costs a pass over memory; cuBLAS gets the workspace
// it needs, unless the user has chosen one.
void make_deterministic();

// sum [M, N] fp32 = a [M, C] b [C, N] in bf16 summed in fp32, added to what is there unless `overwrite`. On a GPU.
void add_product_(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool overwrite);

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
