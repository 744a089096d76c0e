// Grouping of tokens by expert: which rows belong to which expert, the copy of tokens into that order, and the
// weighted sum back per token.
//
// Legend: T tokens, K experts per token, R = T * K rows, E experts, H hidden. Choice c = t * K + k is the k-th
// expert of token t.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace phalanx {

// Rows in order of their expert; within one expert in order of their choice.
struct ExpertGroups {
  at::Tensor counts;   // [E] int64: rows of each expert
  at::Tensor ends;     // [E] int32: where its rows end (exclusive)
  at::Tensor choices;  // [R] int32: the choice each row computes
  at::Tensor rows;     // [T, K] int32: the row of each choice, the inverse of `choices`
  // Only where a part of the experts is computed here: R is then the number of choices of these, and `rows` is 0 elsewhere.
  at::Tensor tokens = {};  // [R] int64: the token of each row
  at::Tensor mask = {};    // [T, K] bool: a choice of these experts
};

// indices [T, K] int32 in [0, E). Throws Error for an index outside.
ExpertGroups group_by_expert(const at::Tensor& indices, std::int64_t num_experts);

// Of the experts first ... first + count - 1 alone, which count from 0 in the result. The host waits for R.
ExpertGroups group_by_local_expert(const at::Tensor& indices, std::int64_t first, std::int64_t count);

// gather_rows and combine_rows for groups of either kind.
at::Tensor rows_of_tokens(const at::Tensor& x, const ExpertGroups& groups,
                          const std::optional<at::Tensor>& weights);
at::Tensor tokens_of_rows(const at::Tensor& values, const ExpertGroups& groups,
                          const std::optional<at::Tensor>& weights,
                          const std::optional<at::Tensor>& residual);

// out[rows[t, k]] = weights[t, k] * x[t]: each row is read once and written K times. x [T, H], rows [T, K], weights [T, K] or
// absent -> [R, H] like x.
at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& rows, const std::optional<at::Tensor>& weights);

// out[t] = residual[t] + sum over k of weights[t, k] * values[rows[t, k]], in order of k, in fp32 (fp64), rounded
// once. values [R, H], rows [T, K], weights [T, K] or absent, residual [T, H] or absent -> [T, H] like values.
at::Tensor combine_rows(const at::Tensor& values, const at::Tensor& rows,
                        const std::optional<at::Tensor>& weights, const std::optional<at::Tensor>& residual);

// Kernels of the device operators.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> group_by_expert_cpu(const at::Tensor& indices,
                                                                               std::int64_t num_experts);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> group_by_expert_meta(const at::Tensor& indices,
                                                                                std::int64_t num_experts);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> group_by_expert_cuda(const at::Tensor& indices,
                                                                                std::int64_t num_experts);
at::Tensor gather_rows_cpu(const at::Tensor& x, const at::Tensor& rows,
                           const std::optional<at::Tensor>& weights);
at::Tensor gather_rows_meta(const at::Tensor& x, const at::Tensor& rows,
                            const std::optional<at::Tensor>& weights);
at::Tensor gather_rows_cuda(const at::Tensor& x, const at::Tensor& rows,
                            const std::optional<at::Tensor>& weights);
at::Tensor combine_rows_cpu(const at::Tensor& values, const at::Tensor& rows,
                            const std::optional<at::Tensor>& weights,
                            const std::optional<at::Tensor>& residual);
at::Tensor combine_rows_meta(const at::Tensor& values, const at::Tensor& rows,
                             const std::optional<at::Tensor>& weights,
                             const std::optional<at::Tensor>& residual);
at::Tensor combine_rows_cuda(const at::Tensor& values, const at::Tensor& rows,
                             const std::optional<at::Tensor>& weights,
                             const std::optional<at::Tensor>& residual);

// The same in plain ATen operations: the oracle of the tests.
ExpertGroups group_by_expert_reference(const at::Tensor& indices, std::int64_t num_experts);
at::Tensor gather_rows_reference(const at::Tensor& x, const at::Tensor& rows,
                                 const std::optional<at::Tensor>& weights);
at::Tensor combine_rows_reference(const at::Tensor& values, const at::Tensor& rows,
                                  const std::optional<at::Tensor>& weights,
                                  const std::optional<at::Tensor>& residual);

}  // namespace phalanx
