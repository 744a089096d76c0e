#include "kernels/cross_entropy/cross_entropy.h"
#include "ops/cuda/launch.h"
#include "ops/linear_cross_entropy.h"

namespace phalanx {

std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy_rows_cuda(const at::Tensor& logits,
                                                                       const at::Tensor& labels_in,
                                                                       const at::Tensor& weights_in,
                                                                       bool make_gradient,
                                                                       bool want_entropy) {
  PHALANX_CHECK(logits.is_contiguous(), Error, "cross_entropy_rows: the logits must be contiguous");
  const cuda::Launch launch(logits);
  const at::Tensor labels = labels_in.contiguous();
  const at::Tensor weights = cuda::operand(weights_in, at::kFloat);
  at::Tensor loss = weights.new_empty(labels.sizes());
  at::Tensor correct = labels.new_empty(labels.sizes(), labels.options().dtype(at::kBool));
  at::Tensor entropy = weights.new_empty({want_entropy ? logits.size(0) : 0});
  kernels::CrossEntropyParams params;
  params.logits = logits.mutable_data_ptr();
  params.labels = labels.const_data_ptr<std::int64_t>();
  params.weights = weights.const_data_ptr<float>();
  params.loss = loss.mutable_data_ptr<float>();
  params.correct = correct.mutable_data_ptr<bool>();
  params.entropy = want_entropy ? entropy.mutable_data_ptr<float>() : nullptr;
  params.rows = logits.size(0);
  params.vocab = logits.size(1);
  params.make_gradient = make_gradient;
  params.element = cuda::element_of(logits, "cross_entropy_rows");
  kernels::cross_entropy_rows(params, launch.stream());
  return {loss, correct, entropy};
}

}  // namespace phalanx
