#include "ops/adamw.h"

#include <cmath>

namespace phalanx {

void adamw_reference_(const AdamWTensors& tensors, const AdamWStep& s) {
  const double correction1 = 1.0 - std::pow(s.beta1, static_cast<double>(s.step));
  const double correction2 = 1.0 - std::pow(s.beta2, static_cast<double>(s.step));
  for (std::size_t i = 0; i < tensors.parameters.size(); ++i) {
    at::Tensor value = tensors.master.empty() ? tensors.parameters[i] : tensors.master[i];
    at::Tensor mean = tensors.exp_avg[i], square = tensors.exp_avg_sq[i];
    const at::Tensor grad = tensors.gradients[i].to(mean.scalar_type()).mul(s.gradient_scale);
    value.mul_(1.0 - s.learning_rate * tensors.weight_decay[i]);
    mean.lerp_(grad, 1.0 - s.beta1);
    square.mul_(s.beta2).addcmul_(grad, grad, 1.0 - s.beta2);
    const at::Tensor denominator = square.sqrt().div_(std::sqrt(correction2)).add_(s.eps);
    value.addcdiv_(mean, denominator, -(s.learning_rate / correction1));
    if (!tensors.master.empty()) {
      tensors.parameters[i].copy_(value);
    }
  }
}

}  // namespace phalanx
