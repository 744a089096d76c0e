// Grouping of tokens by expert on the GPU: launch contract.
//
// Legend: T tokens, K experts per token, R = T * K rows, E experts (1 to 512), H width of a row. Choice c = t * K + k is the
// k-th expert of token t.
//
// Nothing is allocated, nothing waits for the device, equal inputs give equal bits.
#pragma once
#include "kernels/common/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace phalanx::kernels {

// A stable counting sort of the choices by expert. An index outside [0, E) stops the device, as torch's indexing does.
struct GroupByExpertParams {
  const std::int32_t* indices;  // [R]: expert of each choice
  std::int64_t* counts;         // [E]: rows of each expert
  std::int32_t* ends;           // [E]: where its rows end
  std::int32_t* choices;        // [R]: the choice each row computes
  std::int32_t* rows;           // [R]: the row of each choice
  std::int32_t* workspace;      // [group_by_expert_workspace(R, E)]
  std::int64_t choice_count;    // R
  int experts;                  // E
};
std::int64_t group_by_expert_workspace(std::int64_t choice_count, int experts);
void group_by_expert(const GroupByExpertParams& params, cudaStream_t stream);

// out[rows[t, k]] = weights[t, k] * x[t]
struct GatherRowsParams {
  const void* x;             // [T, H]
  const std::int32_t* rows;  // [T, K]
  const void* weights;       // [T, K]; nullptr: 1
  void* out;                 // [R, H]
  std::int64_t tokens;       // T
  std::int64_t width;        // H
  int top_k;                 // K
  Element element;
};
void gather_rows(const GatherRowsParams& params, cudaStream_t stream);

// out[t] = residual[t] + sum over k of weights[t, k] * values[rows[t, k]], in order of k, in fp32, rounded once
struct CombineRowsParams {
  const void* values;        // [R, H]
  const std::int32_t* rows;  // [T, K]
  const void* weights;       // [T, K]; nullptr: 1
  const void* residual;      // [T, H]; nullptr: 0
  void* out;                 // [T, H]
  std::int64_t tokens;       // T
  std::int64_t width;        // H
  int top_k;                 // K
  Element element;
};
void combine_rows(const CombineRowsParams& params, cudaStream_t stream);

}  // namespace phalanx::kernels
