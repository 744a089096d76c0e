// Comparison of an operator with its reference, and of its gradients with both autograd and finite
// differences.
#pragma once
#include "ops/block.h"

#include <functional>

namespace phalanx::testing {

// A differentiable function of tensors with one or several outputs.
using Function = std::function<Tensors(const Tensors&)>;

// max |a - b| / max(|b|), 0 when both are equal everywhere; infinity for different shapes or dtypes.
double relative_error(const at::Tensor& a, const at::Tensor& b);

// Runs both on leaves made of `inputs`, compares outputs and the gradient of every floating-point input under
// one random upstream gradient. Reports with GoogleTest.
void expect_matches_reference(const Function& op, const Function& reference, const Tensors& inputs,
                              double tolerance);

// Directional derivatives by central differences in double precision; `inputs` must be double where they are
// differentiable.
void expect_gradients(const Function& op, const Tensors& inputs, double tolerance = 1e-6);

at::Tensor random_tensor(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat);

}  // namespace phalanx::testing
