// How tokens reach experts that other ranks hold, and how what those make of them comes back. Implementations are in parallel/.
//
//              this rank                              the rank of the experts
//   plan       indices [T, K]      --- counts, choices --->   choices [N, K] of the tokens that come
//   dispatch   rows [T, D]         --- once per rank ----->   rows [N, D]
//   combine    out [T, D]          <-- summed per rank ---    values [N, D]
//
// combine is the backward of dispatch, dispatch that of combine. All of it is collective: every rank makes the same calls in the same
// order, with tokens or without.
//
// Legend: T tokens of this rank, N tokens that its experts serve, K experts per token, E experts of all ranks, P ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace phalanx {

// Experts first ... first + count - 1.
struct ExpertRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Where the tokens of one layer and micro-batch go. Made once, used by forward and backward.
struct DispatchPlan {
  at::Tensor sent;  // [M] int64: the token of each row that is sent, by rank, then by token
  at::Tensor
      arrival;  // [T, P] int32: the row in which rank p's sum for token t comes back; 0 where there is none
  at::Tensor goes;                                        // [T, P] bool: token t goes to rank p
  std::vector<std::int64_t> send_counts, receive_counts;  // [P] rows
  at::Tensor choices;  // [N, K] int32: the experts, counted over all ranks, of the tokens that came
};

class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;
  virtual const char* name() const = 0;
  virtual ExpertRange range(std::int64_t num_experts) const = 0;  // of this rank
  // indices [T, K] int32 in [0, E).
  virtual DispatchPlan plan(const at::Tensor& indices, std::int64_t num_experts) const = 0;
  // rows [T, D] -> [N, D], in order of the rank they come from, then of its tokens.
  virtual at::Tensor dispatch(const at::Tensor& rows, const DispatchPlan& plan) const = 0;
  // values [N, D] -> residual + sum over ranks, in their order, in fp32 (fp64), rounded once: [T, D].
  virtual at::Tensor combine(const at::Tensor& values, const DispatchPlan& plan,
                             const std::optional<at::Tensor>& residual) const = 0;
};

}  // namespace phalanx
