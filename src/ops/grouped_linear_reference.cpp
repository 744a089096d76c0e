#include "ops/grouped_linear.h"

#include <ATen/ops/cat.h>

#include <vector>

namespace phalanx {

at::Tensor grouped_linear_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends) {
  std::vector<at::Tensor> pieces;
  std::int64_t begin = 0;
  for (std::int64_t expert = 0; expert < ends.numel(); ++expert) {
    const std::int64_t end = ends[expert].item<std::int32_t>();
    pieces.push_back(x.slice(0, begin, end).matmul(weight[expert].t()));
    begin = end;
  }
  return at::cat(pieces);
}

}  // namespace phalanx
