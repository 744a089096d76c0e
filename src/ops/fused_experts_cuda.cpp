#include "kernels/grouped_gemm/swiglu_gemm.h"
#include "ops/cuda/expert_rows.h"
#include "ops/fused_experts.h"

#include <ATen/cuda/CUDAContextLight.h>

namespace phalanx {

bool has_hopper_kernels(at::Device device) {
  return at::cuda::getDeviceProperties(device.index())->major == 9;
}

std::tuple<at::Tensor, at::Tensor> grouped_linear_swiglu_cuda(const at::Tensor& x_in,
                                                              const at::Tensor& gate_up_in,
                                                              const at::Tensor& ends) {
  const cuda::Launch launch(x_in);
  const at::Tensor x = x_in.contiguous(), gate_up = gate_up_in.contiguous();
  at::Tensor z = x.new_empty({x.size(0), gate_up.size(1)});
  at::Tensor activation = x.new_empty({x.size(0), gate_up.size(1) / 2});
  kernels::SwigluGemmParams params;
  params.groups = cuda::expert_rows(ends, x.size(0));
  params.x = x.const_data_ptr();
  params.weight = gate_up.const_data_ptr();
  params.z = z.mutable_data_ptr();
  params.a = activation.mutable_data_ptr();
  params.intermediate = static_cast<int>(activation.size(1));
  params.k = static_cast<int>(x.size(1));
  kernels::swiglu_gemm(params, launch.stream());
  return {z, activation};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_linear_swiglu_backward_cuda(
    const at::Tensor& grad_out_in, const at::Tensor& down_in, const at::Tensor& z, const at::Tensor& weights,
    const at::Tensor& ends, const at::Tensor& choices, const at::Tensor& rows) {
  const cuda::Launch launch(grad_out_in);
  const at::Tensor grad_out = grad_out_in.contiguous(), down = down_in.contiguous();
  const auto width = static_cast<int>(down.size(2));
  const at::Tensor scale = weights.flatten().index_select(0, choices).to(at::kFloat);  // [R]
  at::Tensor grad_z = z.new_empty(z.sizes());
  at::Tensor activation = z.new_empty({z.size(0), width});
  at::Tensor partials = scale.new_empty({z.size(0), kernels::swiglu_grad_partials(width)});
  kernels::SwigluGradGemmParams params;
  params.groups = cuda::expert_rows(ends, z.size(0));
  params.dy = grad_out.const_data_ptr();
  params.weight = down.const_data_ptr();
  params.z = z.const_data_ptr();
  params.scale = scale.const_data_ptr<float>();
  params.dz = grad_z.mutable_data_ptr();
  params.scaled_a = activation.mutable_data_ptr();
  params.ds_partials = partials.mutable_data_ptr<float>();
  params.intermediate = width;
  params.hidden = static_cast<int>(down.size(1));
  kernels::swiglu_grad_gemm(params, launch.stream());
  const at::Tensor grad_weights = partials.sum(1).index_select(0, rows.flatten()).view(weights.sizes());
  return {grad_z, activation, grad_weights};
}

}  // namespace phalanx
