// The ranks of a run, seen in two ways: dense parameters are the same on all of them, and experts are spread over groups of `ep_size`
// neighbours. With 8 ranks and ep_size 4, ranks 0-3 and 4-7 each hold all experts once; ranks 1 and 5 hold the same ones. Every rank
// trains on data of its own, whatever ep_size is.
#pragma once
#include "ops/token_dispatch.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string>

namespace phalanx {

using ProcessGroup = c10::intrusive_ptr<c10d::ProcessGroup>;

struct Mesh {
  int rank = 0;
  int world = 1;
  int ep_size = 1;
  ProcessGroup all;       // null with one rank, as the others
  ProcessGroup experts;   // the ep_size ranks that hold all experts together
  ProcessGroup replicas;  // the world / ep_size ranks that hold the same experts

  int ep_rank() const { return rank % ep_size; }
  bool is_first() const { return rank == 0; }
};

// From the names that torch.distributed gave its groups; empty names make the mesh of one rank. Throws ConfigError for groups whose
// sizes do not fit each other.
Mesh make_mesh(const std::string& all, const std::string& experts, const std::string& replicas);

// Experts 0 ... E - 1 in `parts` ranges whose sizes differ by at most one, the larger ones first.
ExpertRange expert_range(std::int64_t num_experts, int part, int parts);

// Sums in place over the group; the same bits on every rank of it. A null group has one rank.
void all_reduce_(const ProcessGroup& group, const std::vector<at::Tensor>& tensors);
// The shares of a tensor of experts [count, ..] of all ranks -> the whole [total, ..] on the first rank of the run; the share itself on
// all others, and where total is 0.
at::Tensor gather_experts(const Mesh& mesh, const at::Tensor& share, std::int64_t total);
// tensor [..] of each rank, stacked in the order of ranks: [P, ..].
at::Tensor all_gather(const ProcessGroup& group, const at::Tensor& tensor);
// Rows [N, ..] by counts of rows for each rank -> rows from each rank.
at::Tensor all_to_all(const ProcessGroup& group, const at::Tensor& rows,
                      const std::vector<std::int64_t>& receive_counts,
                      const std::vector<std::int64_t>& send_counts);

}  // namespace phalanx
