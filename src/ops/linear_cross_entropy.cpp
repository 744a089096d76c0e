#include "ops/linear_cross_entropy.h"

#include "core/error.h"
#include "ops/aten_compat.h"
#include "ops/block.h"
#include "ops/operator.h"
#include "ops/sequence_layout.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>

#include <algorithm>

namespace phalanx {
namespace {

using Rows = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                            const at::Tensor&, bool, bool);

at::ScalarType statistics_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor to_device_of(const at::Tensor& hidden, const at::Tensor& tensor) {
  return tensor.device() == hidden.device() ? tensor : upload(tensor, hidden.device());
}

// `labels` without those to ignore. Where they are on a GPU the host has just waited to learn which these are, and nothing is queued
// that this would wait for.
void check_labels(const at::Tensor& labels, std::int64_t vocab) {
  if (labels.numel() == 0) {
    return;
  }
  const auto [least, largest] = at::aminmax(labels);
  const auto low = least.item<std::int64_t>(), high = largest.item<std::int64_t>();
  PHALANX_CHECK(low >= 0 && high < vocab, Error, "linear_cross_entropy: label ", low < 0 ? low : high,
                " is outside the vocabulary of ", vocab, "; a token without a label has ", kIgnoredLabel);
}

struct Wanted {
  bool grad_hidden = false;
  bool grad_weight = false;
  bool entropy = false;
  bool any_gradient() const { return grad_hidden || grad_weight; }
};

// One pass over the supervised rows. Owns what the pass fills in.
class ChunkedPass {
 public:
  ChunkedPass(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
              const at::Tensor& token_weights, Wanted wanted)
      : weight_(weight), wanted_(wanted) {
    const auto statistics = hidden.options().dtype(statistics_type(hidden));
    const at::Tensor rows = labels.ne(kIgnoredLabel).nonzero().squeeze(1);  // [R]
    const bool all = rows.numel() == labels.numel();
    rows_ = to_device_of(hidden, rows);
    hidden_ = all ? hidden : hidden.index_select(0, rows_);                 // [R, H]
    const at::Tensor chosen = all ? labels : labels.index_select(0, rows);  // [R]
    check_labels(chosen, weight.size(0));
    labels_ = to_device_of(hidden, chosen);
    const at::Tensor weights = token_weights.defined() ? token_weights.to(statistics.dtype())
                                                       : hidden.new_ones(labels.sizes(), statistics);
    weights_ = all ? weights : weights.index_select(0, rows_);
    token_loss = hidden.new_zeros(labels.sizes(), statistics);
    correct = hidden.new_zeros(labels.sizes(), hidden.options().dtype(at::kBool));
    if (wanted.entropy) {
      entropy = hidden.new_zeros(labels.sizes(), statistics);
    }
    if (wanted.grad_hidden) {
      grad_hidden = all ? hidden.new_empty(hidden.sizes()) : hidden.new_zeros(hidden.sizes());
    }
    if (wanted.grad_weight) {
      grad_weight = rows_.numel() > 0 ? weight.new_empty(weight.sizes(), statistics)
                                      : weight.new_zeros(weight.sizes(), statistics);
    }
    loss_sum = token_loss.new_zeros({});
    const std::int64_t step =
        cross_entropy_chunk_rows(weight.size(0), hidden.element_size(), hidden.is_cuda());
    for (std::int64_t begin = 0; begin < rows_.numel(); begin += step) {
      chunk(begin, std::min(step, rows_.numel() - begin));
    }
  }

  at::Tensor loss_sum, token_loss, correct, entropy, grad_hidden, grad_weight;

 private:
  void chunk(std::int64_t begin, std::int64_t count) {
    const at::Tensor rows = rows_.narrow(0, begin, count);
    const at::Tensor hidden = hidden_.narrow(0, begin, count);
    at::Tensor logits = at::mm(hidden, weight_.t());  // [C, V]
    const at::Tensor weights = weights_.narrow(0, begin, count);
    const auto [loss, right, spread] = cross_entropy_rows(logits, labels_.narrow(0, begin, count), weights,
                                                          wanted_.any_gradient(), wanted_.entropy);
    // Chunk by chunk, because torch sums a long vector differently on another number of threads.
    loss_sum.add_(loss.mul(weights).sum());
    token_loss.index_copy_(0, rows, loss);
    correct.index_copy_(0, rows, right);
    if (wanted_.entropy) {
      entropy.index_copy_(0, rows, spread);
    }
    if (wanted_.grad_hidden) {
      grad_hidden.index_copy_(0, rows, hidden_gradient(logits));
    }
    if (wanted_.grad_weight) {
      add_weight_gradient(logits, hidden, /*first=*/begin == 0);
    }
  }

  // BLAS may sum a whole vocabulary in one chain of fp32 additions, which loses digits; here it sums blocks.
  at::Tensor hidden_gradient(const at::Tensor& grad_logits) const {
    constexpr std::int64_t kBlock = 2048;
    const std::int64_t vocab = weight_.size(0);
    if (vocab <= kBlock || grad_logits.scalar_type() != at::kFloat || grad_logits.is_cuda()) {
      return at::mm(grad_logits, weight_);
    }
    at::Tensor sum = at::mm(grad_logits.narrow(1, 0, kBlock), weight_.narrow(0, 0, kBlock));
    for (std::int64_t begin = kBlock; begin < vocab; begin += kBlock) {
      const std::int64_t count = std::min(kBlock, vocab - begin);
      sum.add_(at::mm(grad_logits.narrow(1, begin, count), weight_.narrow(0, begin, count)));
    }
    return sum;
  }

  // In fp32 also where the logits are bf16: a product per chunk rounded to bf16 would add up its roundings.
  void add_weight_gradient(const at::Tensor& grad_logits, const at::Tensor& hidden, bool first) {
    if (grad_logits.is_cuda() && grad_logits.scalar_type() == at::kBFloat16) {
      aten::add_product_(grad_weight, grad_logits.t(), hidden, /*overwrite=*/first);
      return;
    }
    const at::Tensor wide = grad_logits.to(grad_weight.scalar_type()), rows = hidden.to(wide.scalar_type());
    at::addmm_out(grad_weight, grad_weight, wide.t(), rows, /*beta=*/first ? 0 : 1);
  }

  const at::Tensor& weight_;
  Wanted wanted_;
  at::Tensor rows_, hidden_, labels_, weights_;
};

// saved * grad as `dtype`. On the CPU a gradient of exactly 1, as a caller sends who puts his divisor into the token weights,
// costs no multiplication; on a GPU looking at it would make the host wait.
at::Tensor times(const at::Tensor& saved, const at::Tensor& grad, at::ScalarType dtype) {
  if (grad.is_cpu() && grad.item<double>() == 1.0) {
    return saved.to(dtype);
  }
  at::Tensor result = saved.new_empty(saved.sizes(), saved.options().dtype(dtype));
  return at::mul_out(result, saved, grad);
}

class LinearCrossEntropy final : public Block {
 public:
  explicit LinearCrossEntropy(Wanted wanted) : wanted_(wanted) {}
  const char* name() const override { return "linear_cross_entropy"; }

  // The first output alone is differentiable; the others are handed out detached.
  Tensors forward(const Tensors& inputs, Tensors& saved) override {
    ChunkedPass pass(inputs[0], inputs[1], inputs[2], inputs[3], wanted_);
    saved = {pass.grad_hidden, pass.grad_weight};
    weight_type_ = inputs[1].scalar_type();
    Tensors outputs = {pass.loss_sum, pass.token_loss, pass.correct};
    if (wanted_.entropy) {
      outputs.push_back(pass.entropy);
    }
    return outputs;
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>&) override {
    Tensors result(4);
    if (wanted_.grad_hidden) {
      result[0] = times(saved[0], grads[0], saved[0].scalar_type());
    }
    if (wanted_.grad_weight) {
      result[1] = times(saved[1], grads[0], weight_type_);
    }
    return result;
  }

 private:
  Wanted wanted_;
  at::ScalarType weight_type_ = at::kFloat;
};

void check_arguments(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                     const at::Tensor& token_weights) {
  PHALANX_CHECK(hidden.dim() == 2 && weight.dim() == 2 && hidden.sym_size(1) == weight.sym_size(1), Error,
                "linear_cross_entropy: hidden ", hidden.sym_sizes(), " and weight ", weight.sym_sizes(),
                " do not fit; they are [T, H] and [V, H]");
  PHALANX_CHECK(hidden.is_floating_point() && hidden.scalar_type() == weight.scalar_type(), Error,
                "linear_cross_entropy: hidden is ", hidden.scalar_type(), " and weight ",
                weight.scalar_type(), "; convert one to the other's dtype");
  PHALANX_CHECK(
      labels.dim() == 1 && labels.scalar_type() == at::kLong && labels.sym_size(0) == hidden.sym_size(0),
      Error, "linear_cross_entropy: labels are ", labels.sym_sizes(), " ", labels.scalar_type(),
      "; one int64 per row of hidden is needed");
  PHALANX_CHECK(!token_weights.defined() || token_weights.sym_sizes() == labels.sym_sizes(), Error,
                "linear_cross_entropy: one weight per label is needed");
}

}  // namespace

std::int64_t cross_entropy_chunk_rows(std::int64_t vocab_size, std::int64_t element_bytes, bool on_gpu) {
  const std::int64_t chunk_bytes = std::int64_t{on_gpu ? 1280 : 16} << 20;
  constexpr std::int64_t kLeastRows = 128, kMostRows = 8192;
  return std::clamp(chunk_bytes / (vocab_size * element_bytes), kLeastRows, kMostRows);
}

LinearCrossEntropyResult linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                              const at::Tensor& labels, const at::Tensor& token_weights,
                                              bool want_entropy) {
  check_arguments(hidden, weight, labels, token_weights);
  const bool grad_mode = at::GradMode::is_enabled();
  const Wanted wanted{grad_mode && hidden.requires_grad(), grad_mode && weight.requires_grad(), want_entropy};
  const Tensors outputs =
      apply(std::make_unique<LinearCrossEntropy>(wanted), {hidden, weight, labels, token_weights});
  return {outputs[0], outputs[1].detach(), outputs[2].detach(),
          want_entropy ? outputs[3].detach() : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy_rows(const at::Tensor& logits,
                                                                  const at::Tensor& labels,
                                                                  const at::Tensor& weights,
                                                                  bool make_gradient, bool want_entropy) {
  static const auto op = find_operator<Rows>("phalanx::_cross_entropy_rows");
  return op.call(logits, labels, weights, make_gradient, want_entropy);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy_rows_meta(const at::Tensor&,
                                                                       const at::Tensor& labels,
                                                                       const at::Tensor& weights, bool,
                                                                       bool want_entropy) {
  return {weights.new_empty_symint(labels.sym_sizes()),
          labels.new_empty_symint(labels.sym_sizes(), labels.options().dtype(at::kBool)),
          want_entropy ? weights.new_empty_symint(labels.sym_sizes()) : weights.new_empty({0})};
}

}  // namespace phalanx
