#include "kernels/common/column_sum.h"
#include "kernels/norm/rms_norm.h"
#include "ops/cuda/launch.h"
#include "ops/rms_norm.h"

namespace phalanx {

std::tuple<at::Tensor, at::Tensor> rms_norm_forward_cuda(const at::Tensor& x_in, const at::Tensor& weight_in,
                                                         double eps) {
  const cuda::Launch launch(x_in);
  const at::Tensor x = x_in.contiguous();
  const at::Tensor weight = cuda::operand(weight_in, x.scalar_type());
  at::Tensor y = x.new_empty(x.sizes());
  at::Tensor rstd = x.new_empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kFloat));
  kernels::RmsNormForwardParams params;
  params.x = x.const_data_ptr();
  params.weight = weight.const_data_ptr();
  params.y = y.mutable_data_ptr();
  params.rstd = rstd.mutable_data_ptr<float>();
  params.rows = rstd.numel();
  params.width = weight.numel();
  params.eps = static_cast<float>(eps);
  params.element = cuda::element_of(x, "rms_norm");
  kernels::rms_norm_forward(params, launch.stream());
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_cuda(const at::Tensor& grad_y_in, const at::Tensor& x_in,
                                                          const at::Tensor& weight_in, const at::Tensor& rstd,
                                                          const std::optional<at::Tensor>& residual_grad) {
  const cuda::Launch launch(x_in);
  const at::Tensor x = x_in.contiguous();
  const at::Tensor grad_y = cuda::operand(grad_y_in, x.scalar_type());
  const at::Tensor weight = cuda::operand(weight_in, x.scalar_type());
  const at::Tensor around = cuda::operand(residual_grad, x.scalar_type());
  at::Tensor grad_x = x.new_empty(x.sizes());
  at::Tensor grad_weight = weight.new_empty(weight.sizes());
  kernels::RmsNormBackwardParams params;
  params.grad_y = grad_y.const_data_ptr();
  params.x = x.const_data_ptr();
  params.weight = weight.const_data_ptr();
  params.rstd = rstd.const_data_ptr<float>();
  params.residual_grad = cuda::data_or_null(around);
  params.grad_x = grad_x.mutable_data_ptr();
  params.rows = rstd.numel();
  params.width = weight.numel();
  params.element = cuda::element_of(x, "rms_norm");
  const int blocks = kernels::rms_norm_backward_blocks(params);
  at::Tensor partials = rstd.new_empty({blocks, weight.numel()});
  params.partials = partials.mutable_data_ptr<float>();
  kernels::rms_norm_backward(params, launch.stream());
  kernels::column_sum({params.partials, grad_weight.mutable_data_ptr(), blocks, params.width, params.element},
                      launch.stream());
  return {grad_x, grad_weight};
}

}  // namespace phalanx
