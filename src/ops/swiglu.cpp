#include "ops/swiglu.h"

#include "core/error.h"
#include "ops/block.h"
#include "ops/operator.h"

namespace phalanx {
namespace {

using Forward = at::Tensor(const at::Tensor&);
using Backward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, bool);

void check_arguments(const at::Tensor& z) {
  PHALANX_CHECK(z.dim() == 2 && z.sym_size(1) % 2 == 0, Error, "swiglu: z has shape ", z.sym_sizes(),
                "; expected [rows, 2 * width], gate columns first");
  PHALANX_CHECK(z.is_floating_point(), Error, "swiglu: z is ", z.scalar_type(),
                "; expected a floating dtype");
}

class Swiglu final : public Block {
 public:
  const char* name() const override { return "swiglu"; }

  Tensors forward(const Tensors& inputs, Tensors& saved) override {
    saved = {inputs[0]};
    return {swiglu_forward(inputs[0])};
  }

  Tensors backward(const Tensors& saved, const Tensors& grads, const std::vector<bool>&) override {
    return {std::get<0>(swiglu_backward(grads[0], saved[0], /*want_activation=*/false))};
  }
};

at::Tensor empty_activation(const at::Tensor& z) {
  return z.new_empty_symint({z.sym_size(0), z.sym_size(1) / 2});
}

}  // namespace

at::Tensor swiglu(const at::Tensor& z) {
  check_arguments(z);
  return apply(std::make_unique<Swiglu>(), {z})[0];
}

at::Tensor swiglu_forward(const at::Tensor& z) {
  static const auto op = find_operator<Forward>("phalanx::_swiglu_forward");
  return op.call(z);
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad_a, const at::Tensor& z,
                                                   bool want_activation) {
  static const auto op = find_operator<Backward>("phalanx::_swiglu_backward");
  return op.call(grad_a, z, want_activation);
}

at::Tensor swiglu_forward_meta(const at::Tensor& z) { return empty_activation(z); }

std::tuple<at::Tensor, at::Tensor> swiglu_backward_meta(const at::Tensor&, const at::Tensor& z,
                                                        bool want_activation) {
  return {z.new_empty_symint(z.sym_sizes()), want_activation ? empty_activation(z) : at::Tensor()};
}

}  // namespace phalanx
