#include "parallel/mesh.h"

#include "core/error.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <algorithm>
#include <numeric>

namespace phalanx {
namespace {

// Small tensors share one message, because a message costs more than its bytes; large ones are reduced where they lie.
constexpr std::int64_t kBucketBytes = std::int64_t{32} << 20;

void all_reduce_bucket(const ProcessGroup& group, const std::vector<at::Tensor>& bucket) {
  if (bucket.size() == 1 && bucket[0].is_contiguous()) {
    std::vector<at::Tensor> alone = bucket;
    group->allreduce(alone)->wait();
    return;
  }
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : bucket) {
    elements += tensor.numel();
  }
  std::vector<at::Tensor> flat = {bucket[0].new_empty({elements})};
  const auto each_part = [&](const auto& visit) {
    std::int64_t begin = 0;
    for (const at::Tensor& tensor : bucket) {
      visit(tensor, flat[0].narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  };
  each_part([](const at::Tensor& tensor, const at::Tensor& part) { part.copy_(tensor); });
  group->allreduce(flat)->wait();
  each_part([](const at::Tensor& tensor, const at::Tensor& part) { tensor.copy_(part); });
}

}  // namespace

Mesh make_mesh(const std::string& all, const std::string& experts, const std::string& replicas) {
  Mesh mesh;
  if (all.empty()) {
    return mesh;
  }
  mesh.all = c10d::resolve_process_group(all);
  mesh.experts = c10d::resolve_process_group(experts);
  mesh.replicas = c10d::resolve_process_group(replicas);
  mesh.rank = mesh.all->getRank();
  mesh.world = mesh.all->getSize();
  mesh.ep_size = mesh.experts->getSize();
  PHALANX_CHECK(
      mesh.ep_size * mesh.replicas->getSize() == mesh.world && mesh.experts->getRank() == mesh.ep_rank(),
      ConfigError, "groups of ", mesh.ep_size, " and ", mesh.replicas->getSize(), " ranks do not make up ",
      mesh.world, " ranks; ep_size must divide the number of ranks");
  return mesh;
}

ExpertRange expert_range(std::int64_t num_experts, int part, int parts) {
  const std::int64_t base = num_experts / parts, larger = num_experts % parts;
  return {part * base + std::min<std::int64_t>(part, larger), base + (part < larger ? 1 : 0)};
}

void all_reduce_(const ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  if (!group || group->getSize() == 1) {
    return;
  }
  std::vector<at::Tensor> bucket;
  std::int64_t bytes = 0;
  const auto flush = [&] {
    if (!bucket.empty()) {
      all_reduce_bucket(group, bucket);
    }
    bucket.clear();
    bytes = 0;
  };
  for (const at::Tensor& tensor : tensors) {
    const auto size = static_cast<std::int64_t>(tensor.nbytes());
    if (!bucket.empty() && (bucket[0].scalar_type() != tensor.scalar_type() || bytes + size > kBucketBytes)) {
      flush();
    }
    bucket.push_back(tensor);
    bytes += size;
  }
  flush();
}

at::Tensor gather_experts(const Mesh& mesh, const at::Tensor& share, std::int64_t total) {
  // One group of ranks holds all experts once; the others would send the same.
  if (total == 0 || mesh.rank >= mesh.ep_size) {
    return share;
  }
  constexpr int kTag = 0;
  if (!mesh.is_first()) {
    std::vector<at::Tensor> own = {share.contiguous()};
    mesh.experts->send(own, 0, kTag)->wait();
    return share;
  }
  std::vector<std::int64_t> shape = share.sizes().vec();
  shape[0] = total;
  const at::Tensor whole = share.new_empty(shape);
  whole.narrow(0, 0, share.size(0)).copy_(share);
  for (int rank = 1; rank < mesh.ep_size; ++rank) {
    const ExpertRange range = expert_range(total, rank, mesh.ep_size);
    std::vector<at::Tensor> part = {whole.narrow(0, range.first, range.count)};
    mesh.experts->recv(part, rank, kTag)->wait();
  }
  return whole;
}

at::Tensor all_gather(const ProcessGroup& group, const at::Tensor& tensor) {
  if (!group) {
    return tensor.unsqueeze(0);
  }
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  shape.insert(shape.begin(), group->getSize());
  at::Tensor result = tensor.new_empty({group->getSize() * tensor.numel()});
  at::Tensor own = tensor.contiguous().view({-1});
  group->_allgather_base(result, own)->wait();
  return result.view(shape);
}

at::Tensor all_to_all(const ProcessGroup& group, const at::Tensor& rows,
                      const std::vector<std::int64_t>& receive_counts,
                      const std::vector<std::int64_t>& send_counts) {
  std::vector<std::int64_t> shape = rows.sizes().vec();
  shape[0] = std::accumulate(receive_counts.begin(), receive_counts.end(), std::int64_t{0});
  at::Tensor result = rows.new_empty(shape), own = rows.contiguous();
  std::vector<std::int64_t> receive = receive_counts, send = send_counts;
  group->alltoall_base(result, own, receive, send)->wait();
  return result;
}

}  // namespace phalanx
