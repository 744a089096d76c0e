#include "models/parameter_set.h"

#include "core/error.h"

#include <ATen/ops/empty.h>

namespace phalanx {

ParameterSet::ParameterSet(const ModelSpec& spec, at::ScalarType dtype, at::Device device) {
  for (const ParameterSpec& parameter : spec.parameters) {
    index_.emplace(parameter.name, list_.size());
    at::Tensor tensor = at::empty(parameter.shape, at::TensorOptions().dtype(dtype).device(device));
    list_.push_back({parameter.name, tensor.requires_grad_(), parameter.decay});
  }
}

const at::Tensor& ParameterSet::at(const std::string& name) const {
  const auto found = index_.find(name);
  PHALANX_CHECK(found != index_.end(), Error, "the model has no parameter ", name);
  return list_[found->second].tensor;
}

at::Tensor ParameterSet::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? at::Tensor() : list_[found->second].tensor;
}

at::ScalarType to_scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kF64:
      return at::kDouble;
    case Dtype::kBF16:
      return at::kBFloat16;
    case Dtype::kF16:
      return at::kHalf;
    default:
      fail("parameters cannot be held as ", dtype_name(dtype));
  }
}

Dtype to_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Dtype::kF32;
    case at::kDouble:
      return Dtype::kF64;
    case at::kBFloat16:
      return Dtype::kBF16;
    case at::kHalf:
      return Dtype::kF16;
    default:
      fail("parameters cannot be held as ", c10::toString(type));
  }
}

}  // namespace phalanx
