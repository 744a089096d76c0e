#include "ops/permute.h"

#include "core/error.h"
#include "ops/operator.h"

namespace phalanx {
namespace {

using Group = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, std::int64_t);
using Gather = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);
using Combine = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                           const std::optional<at::Tensor>&);

}  // namespace

ExpertGroups group_by_expert(const at::Tensor& indices, std::int64_t num_experts) {
  PHALANX_CHECK(indices.dim() == 2 && indices.scalar_type() == at::kInt, Error,
                "group_by_expert: indices are ", indices.scalar_type(), " ", indices.sym_sizes(),
                "; expected int32 [tokens, top_k]");
  static const auto op = find_operator<Group>("phalanx::_group_by_expert");
  auto [counts, ends, choices, rows] = op.call(indices, num_experts);
  return {counts, ends, choices, rows};
}

at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& rows,
                       const std::optional<at::Tensor>& weights) {
  static const auto op = find_operator<Gather>("phalanx::_gather_rows");
  return op.call(x, rows, weights);
}

at::Tensor combine_rows(const at::Tensor& values, const at::Tensor& rows,
                        const std::optional<at::Tensor>& weights, const std::optional<at::Tensor>& residual) {
  static const auto op = find_operator<Combine>("phalanx::_combine_rows");
  return op.call(values, rows, weights, residual);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> group_by_expert_meta(const at::Tensor& indices,
                                                                                std::int64_t num_experts) {
  return {indices.new_empty({num_experts}, indices.options().dtype(at::kLong)),
          indices.new_empty({num_experts}), indices.new_empty_symint({indices.sym_numel()}),
          indices.new_empty_symint(indices.sym_sizes())};
}

at::Tensor gather_rows_meta(const at::Tensor& x, const at::Tensor& rows, const std::optional<at::Tensor>&) {
  return x.new_empty_symint({rows.sym_numel(), x.sym_size(1)});
}

at::Tensor combine_rows_meta(const at::Tensor& values, const at::Tensor& rows,
                             const std::optional<at::Tensor>&, const std::optional<at::Tensor>&) {
  return values.new_empty_symint({rows.sym_size(0), values.sym_size(1)});
}

}  // namespace phalanx
