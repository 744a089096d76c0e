#include "parallel/all_to_all.h"

#include "ops/permute.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace phalanx {
namespace {

class AllToAll final : public TokenDispatcher {
 public:
  explicit AllToAll(const Mesh& mesh) : group_(mesh.experts), rank_(mesh.ep_rank()), ranks_(mesh.ep_size) {}
  const char* name() const override { return "all_to_all"; }

  ExpertRange range(std::int64_t num_experts) const override {
    return expert_range(num_experts, rank_, ranks_);
  }

  DispatchPlan plan(const at::Tensor& indices, std::int64_t num_experts) const override {
    DispatchPlan plan;
    const std::int64_t tokens = indices.size(0);
    const at::Tensor owner = at::bucketize(indices, first_experts(indices, num_experts), /*out_int32=*/false,
                                           /*right=*/true);  // [T, K]
    plan.goes = at::zeros({tokens, ranks_}, indices.options().dtype(at::kBool)).scatter_(1, owner, true);
    const at::Tensor by_rank = plan.goes.t().contiguous();  // [P, T]
    plan.sent = by_rank.nonzero().select(1, 1);             // [M]
    const at::Tensor place = by_rank.flatten().cumsum(0).sub_(1).view({ranks_, tokens}).t();
    plan.arrival = at::where(plan.goes, place, 0).to(at::kInt);
    exchange_counts(plan);
    plan.choices = dispatch(indices, plan);
    return plan;
  }

  at::Tensor dispatch(const at::Tensor& rows, const DispatchPlan& plan) const override {
    return all_to_all(group_, rows.index_select(0, plan.sent), plan.receive_counts, plan.send_counts);
  }

  at::Tensor combine(const at::Tensor& values, const DispatchPlan& plan,
                     const std::optional<at::Tensor>& residual) const override {
    const at::Tensor sums = all_to_all(group_, values, plan.send_counts, plan.receive_counts);  // [M, D]
    if (sums.size(0) == 0) {
      return residual.has_value() ? residual->clone() : sums.new_zeros({plan.goes.size(0), sums.size(1)});
    }
    return combine_rows(sums, plan.arrival, plan.goes.to(sums.scalar_type()), residual);
  }

 private:
  // The first expert of every rank but the first.
  at::Tensor first_experts(const at::Tensor& indices, std::int64_t num_experts) const {
    std::vector<std::int64_t> first;
    for (int rank = 1; rank < ranks_; ++rank) {
      first.push_back(expert_range(num_experts, rank, ranks_).first);
    }
    return at::tensor(first, at::TensorOptions().dtype(at::kInt)).to(indices.device());
  }

  void exchange_counts(DispatchPlan& plan) const {
    const at::Tensor sent = plan.goes.sum(0);  // [P] int64
    const std::vector<std::int64_t> one_each(static_cast<std::size_t>(ranks_), 1);
    const at::Tensor received = all_to_all(group_, sent, one_each, one_each);
    const auto to_host = [](const at::Tensor& counts) {
      const at::Tensor host = counts.cpu();
      const auto* data = host.const_data_ptr<std::int64_t>();
      return std::vector<std::int64_t>(data, data + host.numel());
    };
    plan.send_counts = to_host(sent);
    plan.receive_counts = to_host(received);
  }

  ProcessGroup group_;
  int rank_, ranks_;
};

}  // namespace

std::shared_ptr<const TokenDispatcher> make_dispatcher(const Mesh& mesh) {
  return mesh.ep_size == 1 ? nullptr : std::make_shared<const AllToAll>(mesh);
}

}  // namespace phalanx
