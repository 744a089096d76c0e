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

ExpertGroups group_by_local_expert(const at::Tensor& indices, std::int64_t first, std::int64_t count) {
  const at::Tensor local = indices.sub(first);
  const at::Tensor mask = local.ge(0).logical_and_(local.lt(count));
  // All other choices form one more group, behind the others.
  const ExpertGroups all = group_by_expert(local.masked_fill(mask.logical_not(), count), count + 1);
  const std::int64_t rows = indices.numel() - all.counts[count].item<std::int64_t>();
  ExpertGroups groups;
  groups.counts = all.counts.narrow(0, 0, count);
  groups.ends = all.ends.narrow(0, 0, count);
  groups.choices = all.choices.narrow(0, 0, rows);
  groups.rows = all.rows.masked_fill(mask.logical_not(), 0);
  groups.tokens = groups.choices.div(indices.size(1), "floor").to(at::kLong);
  groups.mask = mask;
  return groups;
}

at::Tensor rows_of_tokens(const at::Tensor& x, const ExpertGroups& groups,
                          const std::optional<at::Tensor>& weights) {
  if (!groups.mask.defined()) {
    return gather_rows(x, groups.rows, weights);
  }
  at::Tensor rows = x.index_select(0, groups.tokens);
  return weights.has_value() ? rows.mul_(weights->flatten().index_select(0, groups.choices).unsqueeze(1))
                             : rows;
}

at::Tensor tokens_of_rows(const at::Tensor& values, const ExpertGroups& groups,
                          const std::optional<at::Tensor>& weights,
                          const std::optional<at::Tensor>& residual) {
  if (!groups.mask.defined()) {
    return combine_rows(values, groups.rows, weights, residual);
  }
  if (values.size(0) == 0) {
    return residual.has_value() ? residual->clone() : values.new_zeros({groups.rows.size(0), values.size(1)});
  }
  const at::Tensor mask = groups.mask.to(values.scalar_type());
  return combine_rows(values, groups.rows, weights.has_value() ? mask.mul(*weights) : mask, residual);
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
