// Hands the gradients of each layer to a consumer as soon as backward has made them, and drops them: the gradients of the whole
// model never exist together.
#pragma once
#include "models/parameter_set.h"
#include "ops/block.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace phalanx {

class GradientBuckets {
 public:
  // Called within backward, with gradients switched off, once per bucket: the trained parameters of a layer, or one that belongs to
  // no layer. `members` are their positions in the set.
  using Consumer = std::function<void(const std::vector<std::size_t>& members, const Tensors& gradients)>;

  // Watches the parameters while it lives. They must be those of `parameters` as they are now.
  GradientBuckets(const ParameterSet& parameters, Consumer consumer);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // After each backward: hands out what did not fill, with zeros where no gradient came.
  void finish();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace phalanx
