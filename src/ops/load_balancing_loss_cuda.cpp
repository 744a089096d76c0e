#include "kernels/router/router.h"
#include "ops/cuda/launch.h"
#include "ops/load_balancing_loss.h"

namespace phalanx {
namespace {

kernels::RouterShape shape_of(const at::Tensor& logits, std::int64_t top_k) {
  return {logits.size(0), static_cast<int>(logits.size(1)), static_cast<int>(top_k),
          cuda::element_of(logits, "load_balancing_loss")};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> load_balancing_statistics_cuda(const at::Tensor& logits_in,
                                                                  std::int64_t top_k) {
  const cuda::Launch launch(logits_in);
  const at::Tensor logits = logits_in.contiguous();
  at::Tensor partials = logits.new_empty({kernels::load_balancing_blocks(logits.size(0)), 2, logits.size(1)},
                                         logits.options().dtype(at::kFloat));
  kernels::load_balancing_statistics(
      {shape_of(logits, top_k), logits.const_data_ptr(), partials.mutable_data_ptr<float>()},
      launch.stream());
  const at::Tensor sums = partials.sum(0);
  return {sums[0], sums[1]};
}

at::Tensor load_balancing_backward_cuda(const at::Tensor& grad_scores_in, const at::Tensor& logits_in) {
  const cuda::Launch launch(logits_in);
  const at::Tensor logits = logits_in.contiguous();
  const at::Tensor grad_scores = cuda::operand(grad_scores_in, at::kFloat);
  at::Tensor grad_logits = logits.new_empty(logits.sizes());
  kernels::load_balancing_backward({shape_of(logits, /*top_k=*/1), grad_scores.const_data_ptr<float>(),
                                    logits.const_data_ptr(), grad_logits.mutable_data_ptr()},
                                   launch.stream());
  return grad_logits;
}

}  // namespace phalanx
