#include "ops/permute.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>

namespace phalanx {

ExpertGroups group_by_expert_reference(const at::Tensor& indices, std::int64_t num_experts) {
  const at::Tensor flat = indices.flatten();
  const at::Tensor choices = flat.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor counts = at::bincount(flat, {}, num_experts);
  return {counts, counts.cumsum(0).to(at::kInt), choices.to(at::kInt),
          choices.argsort().to(at::kInt).view_as(indices)};
}

at::Tensor gather_rows_reference(const at::Tensor& x, const at::Tensor& rows,
                                 const std::optional<at::Tensor>& weights) {
  const at::Tensor choices = rows.flatten().argsort();  // of each row
  const at::Tensor gathered = x.index_select(0, choices.floor_divide(rows.size(1)));
  return weights.has_value() ? gathered * weights->flatten().index_select(0, choices).unsqueeze(1) : gathered;
}

at::Tensor combine_rows_reference(const at::Tensor& values, const at::Tensor& rows,
                                  const std::optional<at::Tensor>& weights,
                                  const std::optional<at::Tensor>& residual) {
  const auto compute = values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor chosen =
      values.to(compute).index_select(0, rows.flatten()).view({rows.size(0), rows.size(1), values.size(1)});
  if (weights.has_value()) {
    chosen = chosen * weights->to(compute).unsqueeze(2);
  }
  const at::Tensor sum = chosen.sum(1);
  return (residual.has_value() ? sum + residual->to(compute) : sum).to(values.scalar_type());
}

}  // namespace phalanx
