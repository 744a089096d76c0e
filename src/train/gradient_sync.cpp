#include "train/gradient_sync.h"

#include "ops/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <cmath>

namespace phalanx {

double sum_over_ranks(const Mesh& mesh, const ParameterSet& parameters, const Tensors& gradients) {
  if (mesh.world == 1) {
    return global_norm(gradients).item<double>();
  }
  const at::NoGradGuard no_grad;
  Tensors dense, experts;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    (parameters.list()[i].total_rows > 0 ? experts : dense).push_back(gradients[i]);
  }
  all_reduce_(mesh.all, dense);
  all_reduce_(mesh.replicas, experts);
  const double dense_norm = global_norm(dense).item<double>();
  if (experts.empty()) {
    return dense_norm;
  }
  const double own = global_norm(experts).item<double>();
  const at::Tensor squares =
      all_gather(mesh.experts, at::full({}, own * own, dense[0].options().dtype(at::kDouble))).cpu();
  double sum = dense_norm * dense_norm;
  for (std::int64_t rank = 0; rank < squares.numel(); ++rank) {
    sum += squares[rank].item<double>();
  }
  return std::sqrt(sum);
}

}  // namespace phalanx
