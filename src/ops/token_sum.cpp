#include "ops/token_sum.h"

#include "ops/grouped_linear.h"

#include <ATen/ops/full.h>

namespace phalanx {

// On the CPU as one group of rows, because the sum of a plain product over the tokens is cut by the number of threads.
at::Tensor sum_over_tokens(const at::Tensor& grad_y, const at::Tensor& x) {
  if (!x.is_cpu()) {
    return grad_y.t().mm(x);
  }
  const at::Tensor ends = at::full({1}, x.size(0), x.options().dtype(at::kInt));
  return grouped_linear_weight_grad(grad_y, x, ends, ExpertsImplementation::kEager).squeeze(0);
}

}  // namespace phalanx
