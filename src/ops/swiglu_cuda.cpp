#include "kernels/swiglu/swiglu.h"
#include "ops/cuda/launch.h"
#include "ops/experts.h"
#include "ops/swiglu.h"

namespace phalanx {

at::Tensor swiglu_forward_cuda(const at::Tensor& z_in) {
  const cuda::Launch launch(z_in);
  const at::Tensor z = z_in.contiguous();
  at::Tensor a = z.new_empty({z.size(0), z.size(1) / 2});
  kernels::SwigluForwardParams params;
  params.z = z.const_data_ptr();
  params.a = a.mutable_data_ptr();
  params.rows = a.size(0);
  params.width = a.size(1);
  params.element = cuda::element_of(z, "swiglu");
  kernels::swiglu_forward(params, launch.stream());
  return a;
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward_cuda(const at::Tensor& grad_a_in, const at::Tensor& z_in,
                                                        bool want_activation) {
  const cuda::Launch launch(z_in);
  const at::Tensor z = z_in.contiguous();
  const at::Tensor grad_a = cuda::operand(grad_a_in, z.scalar_type());
  at::Tensor grad_z = z.new_empty(z.sizes());
  at::Tensor a = want_activation ? z.new_empty(grad_a.sizes()) : at::Tensor();
  kernels::SwigluBackwardParams params;
  params.grad_a = grad_a.const_data_ptr();
  params.z = z.const_data_ptr();
  params.grad_z = grad_z.mutable_data_ptr();
  params.a = want_activation ? a.mutable_data_ptr() : nullptr;
  params.rows = grad_a.size(0);
  params.width = grad_a.size(1);
  params.element = cuda::element_of(z, "swiglu");
  kernels::swiglu_backward(params, launch.stream());
  return {grad_z, a};
}

at::Tensor weigh_activation_cuda_(at::Tensor activation, const at::Tensor& grad_activation_in,
                                  const at::Tensor& weights_in, const at::Tensor& choices) {
  PHALANX_CHECK(activation.is_contiguous(), Error, "weigh_activation_: the activation has strides ",
                activation.strides(), "; it is changed in place and must be contiguous");
  const cuda::Launch launch(activation);
  const at::Tensor grad_activation = cuda::operand(grad_activation_in, activation.scalar_type());
  const at::Tensor weights = cuda::operand(weights_in, activation.scalar_type());
  at::Tensor grad_weights = weights.new_empty(weights.sizes(), weights.options().dtype(at::kFloat));
  kernels::WeighActivationParams params;
  params.activation = activation.mutable_data_ptr();
  params.grad_activation = grad_activation.const_data_ptr();
  params.weights = weights.const_data_ptr();
  params.choices = choices.const_data_ptr<std::int32_t>();
  params.grad_weights = grad_weights.mutable_data_ptr<float>();
  params.rows = activation.size(0);
  params.width = activation.size(1);
  params.element = cuda::element_of(activation, "weigh_activation_");
  kernels::weigh_activation(params, launch.stream());
  return grad_weights;
}

}  // namespace phalanx
