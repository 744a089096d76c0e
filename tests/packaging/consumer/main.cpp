// consumer MODEL OUTPUT: one gradient and one plain descent step on the C++ library.
#include <ATen/ops/arange.h>

#include <iostream>
#include <phalanx/auto_model.h>

int main(int, char** argv) {
  auto model = phalanx::AutoModelForCausalLM::from_pretrained(argv[1]);
  const at::Tensor tokens = at::arange(1, 9), labels = at::arange(2, 10);
  const at::Tensor loss = model.forward({.tokens = tokens, .labels = labels}).loss;
  loss.backward();
  for (const auto& [name, parameter] : model.named_parameters()) {
    parameter.detach().sub_(parameter.grad(), 0.1);
  }
  model.save_pretrained(argv[2]);
  std::cout << loss.item<float>() << '\n';
}
