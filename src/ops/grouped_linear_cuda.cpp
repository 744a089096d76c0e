#include "ops/aten_compat.h"
#include "ops/cuda/expert_rows.h"
#include "ops/grouped_linear.h"
#include "ops/grouped_linear_host.h"

#include <ATen/ops/mm_ops.h>

namespace phalanx {
namespace {

at::Tensor own_linear(const at::Tensor& x, const at::Tensor& weight_in, const at::Tensor& ends) {
  const cuda::Launch launch(x);
  // Both ways a weight can lie have kernels; the transpose of one is the other.
  const bool in_out = weight_in.transpose(1, 2).is_contiguous();
  const at::Tensor weight = in_out ? weight_in : weight_in.contiguous();
  at::Tensor y = x.new_empty({x.size(0), weight.size(1)});
  kernels::GroupedGemmParams params;
  params.groups = cuda::expert_rows(ends, x.size(0));
  params.x = x.const_data_ptr();
  params.weight = weight.const_data_ptr();
  params.y = y.mutable_data_ptr();
  params.n = static_cast<int>(weight.size(1));
  params.k = static_cast<int>(weight.size(2));
  params.layout = in_out ? kernels::WeightLayout::kInOut : kernels::WeightLayout::kOutIn;
  kernels::grouped_gemm(params, launch.stream());
  return y;
}

at::Tensor own_weight_grad(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& ends) {
  const cuda::Launch launch(x);
  at::Tensor grad = x.new_empty({ends.numel(), grad_y.size(1), x.size(1)});
  kernels::GroupedGemmWeightGradParams params;
  params.groups = cuda::expert_rows(ends, x.size(0));
  params.dy = grad_y.const_data_ptr();
  params.x = x.const_data_ptr();
  params.dw = grad.mutable_data_ptr();
  params.n = static_cast<int>(grad_y.size(1));
  params.k = static_cast<int>(x.size(1));
  params.dw_is_fp32 = false;
  params.accumulate = false;
  kernels::grouped_gemm_weight_grad(params, launch.stream());
  return grad;
}

at::Tensor eager_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends) {
  at::Tensor y = x.new_empty({x.size(0), weight.size(1)});
  for (const auto [expert, begin, end] : expert_ranges(ends)) {
    at::Tensor out = y.narrow(0, begin, end - begin);
    at::_ops::mm_out::call(x.narrow(0, begin, end - begin), weight.select(0, expert).t(), out);
  }
  return y;
}

at::Tensor eager_weight_grad(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& ends) {
  at::Tensor grad = x.new_empty({ends.numel(), grad_y.size(1), x.size(1)});
  for (const auto [expert, begin, end] : expert_ranges(ends)) {
    at::Tensor out = grad.select(0, expert);
    at::_ops::mm_out::call(grad_y.narrow(0, begin, end - begin).t(), x.narrow(0, begin, end - begin), out);
  }
  return grad;
}

[[noreturn]] void refuse(std::int64_t implementation) {
  fail("grouped_linear: implementation ", implementation,
       " has no kernel; choose_experts_implementation() finds one");
}

}  // namespace

at::Tensor grouped_linear_cuda(const at::Tensor& x_in, const at::Tensor& weight_in, const at::Tensor& ends,
                               std::int64_t implementation) {
  const at::Tensor x = x_in.contiguous(), weight = weight_in.detach();
  switch (static_cast<ExpertsImplementation>(implementation)) {
    case ExpertsImplementation::kEager:
      return eager_linear(x, weight, ends);
    case ExpertsImplementation::kBatchedMm:
      return batched_linear(x, weight, ends);
    case ExpertsImplementation::kGroupedMm:
      return aten::grouped_mm(x, weight.transpose(1, 2), ends);
    case ExpertsImplementation::kPhalanx:
      return own_linear(x, weight, ends);
    case ExpertsImplementation::kAuto:
      break;
  }
  refuse(implementation);
}

at::Tensor grouped_linear_weight_grad_cuda(const at::Tensor& grad_y_in, const at::Tensor& x_in,
                                           const at::Tensor& ends, std::int64_t implementation) {
  const at::Tensor grad_y = grad_y_in.contiguous(), x = x_in.contiguous();
  switch (static_cast<ExpertsImplementation>(implementation)) {
    case ExpertsImplementation::kEager:
      return eager_weight_grad(grad_y, x, ends);
    case ExpertsImplementation::kBatchedMm:
      return batched_weight_grad(grad_y, x, ends);
    case ExpertsImplementation::kGroupedMm:
      return aten::grouped_mm(grad_y.t(), x, ends);
    case ExpertsImplementation::kPhalanx:
      return own_weight_grad(grad_y, x, ends);
    case ExpertsImplementation::kAuto:
      break;
  }
  refuse(implementation);
}

}  // namespace phalanx
