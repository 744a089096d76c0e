#include "kernels/permute/permute.h"
#include "ops/cuda/launch.h"
#include "ops/permute.h"

namespace phalanx {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> group_by_expert_cuda(const at::Tensor& indices_in,
                                                                                std::int64_t num_experts) {
  const cuda::Launch launch(indices_in);
  const at::Tensor indices = indices_in.contiguous();
  const auto experts = static_cast<int>(num_experts);
  at::Tensor counts = indices.new_empty({num_experts}, indices.options().dtype(at::kLong));
  at::Tensor ends = indices.new_empty({num_experts});
  at::Tensor choices = indices.new_empty({indices.numel()});
  at::Tensor rows = indices.new_empty(indices.sizes());
  at::Tensor workspace = indices.new_empty({kernels::group_by_expert_workspace(indices.numel(), experts)});
  kernels::GroupByExpertParams params;
  params.indices = indices.const_data_ptr<std::int32_t>();
  params.counts = counts.mutable_data_ptr<std::int64_t>();
  params.ends = ends.mutable_data_ptr<std::int32_t>();
  params.choices = choices.mutable_data_ptr<std::int32_t>();
  params.rows = rows.mutable_data_ptr<std::int32_t>();
  params.workspace = workspace.mutable_data_ptr<std::int32_t>();
  params.choice_count = indices.numel();
  params.experts = experts;
  kernels::group_by_expert(params, launch.stream());
  return {counts, ends, choices, rows};
}

at::Tensor gather_rows_cuda(const at::Tensor& x_in, const at::Tensor& rows,
                            const std::optional<at::Tensor>& weights_in) {
  const cuda::Launch launch(x_in);
  const at::Tensor x = x_in.contiguous();
  const at::Tensor weights = cuda::operand(weights_in, x.scalar_type());
  at::Tensor out = x.new_empty({rows.numel(), x.size(1)});
  kernels::GatherRowsParams params;
  params.x = x.const_data_ptr();
  params.rows = rows.const_data_ptr<std::int32_t>();
  params.weights = cuda::data_or_null(weights);
  params.out = out.mutable_data_ptr();
  params.tokens = rows.size(0);
  params.width = x.size(1);
  params.top_k = static_cast<int>(rows.size(1));
  params.element = cuda::element_of(x, "gather_rows");
  kernels::gather_rows(params, launch.stream());
  return out;
}

at::Tensor combine_rows_cuda(const at::Tensor& values_in, const at::Tensor& rows,
                             const std::optional<at::Tensor>& weights_in,
                             const std::optional<at::Tensor>& residual_in) {
  const cuda::Launch launch(values_in);
  const at::Tensor values = values_in.contiguous();
  const at::Tensor weights = cuda::operand(weights_in, values.scalar_type());
  const at::Tensor residual = cuda::operand(residual_in, values.scalar_type());
  at::Tensor out = values.new_empty({rows.size(0), values.size(1)});
  kernels::CombineRowsParams params;
  params.values = values.const_data_ptr();
  params.rows = rows.const_data_ptr<std::int32_t>();
  params.weights = cuda::data_or_null(weights);
  params.residual = cuda::data_or_null(residual);
  params.out = out.mutable_data_ptr();
  params.tokens = rows.size(0);
  params.width = values.size(1);
  params.top_k = static_cast<int>(rows.size(1));
  params.element = cuda::element_of(values, "combine_rows");
  kernels::combine_rows(params, launch.stream());
  return out;
}

}  // namespace phalanx
