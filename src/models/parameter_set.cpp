#include "models/parameter_set.h"

#include "core/error.h"
#include "parallel/mesh.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <string_view>

namespace phalanx {
namespace {

at::ScalarType held_type(const Parameter& parameter, at::ScalarType dtype) {
  return parameter.fp32 && dtype != at::kDouble ? at::kFloat : dtype;
}

}  // namespace

ParameterSet::ParameterSet(const ModelSpec& spec, at::ScalarType dtype, at::Device device)
    : ParameterSet(spec, dtype, device, 0, 1) {}

ParameterSet::ParameterSet(const ModelSpec& spec, at::ScalarType dtype, at::Device device, int part,
                           int parts) {
  Shapes shapes;
  for (const ParameterSpec& parameter : spec.parameters) {
    index_.emplace(parameter.name, list_.size());
    list_.push_back({parameter.name, {}, parameter.decay, parameter.fp32, parameter.trained});
    shapes.push_back(parameter.shape);
    if (parameter.expert && parts > 1) {
      const std::int64_t total = parameter.shape.at(0);
      const ExpertRange range = expert_range(total, part, parts);
      list_.back().first_row = range.first;
      list_.back().total_rows = total;
      shapes.back().at(0) = range.count;
    }
  }
  allocate(shapes, dtype, device);
}

ParameterSet ParameterSet::to(at::ScalarType dtype, at::Device device) const {
  const at::NoGradGuard no_grad;
  ParameterSet result;
  result.index_ = index_;
  Shapes shapes;
  for (const Parameter& parameter : list_) {
    result.list_.push_back(parameter);
    result.list_.back().tensor.reset();
    shapes.push_back(parameter.tensor.sizes().vec());
  }
  result.allocate(shapes, dtype, device);
  for (std::size_t i = 0; i < list_.size(); ++i) {
    result.list_[i].tensor.copy_(list_[i].tensor);
  }
  return result;
}

void ParameterSet::allocate(const Shapes& shapes, at::ScalarType dtype, at::Device device) {
  const at::TensorOptions options = at::TensorOptions().device(device);
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (list_[i].tensor.defined()) {
      continue;
    }
    const std::vector<std::size_t> group = side_by_side(list_[i].name);
    std::int64_t rows = 0;
    for (const std::size_t member : group) {
      rows += shapes[member][0];
    }
    std::vector<std::int64_t> whole = shapes[i];
    whole[0] = rows;
    const at::Tensor memory = at::empty(whole, options.dtype(held_type(list_[i], dtype)));
    std::int64_t begin = 0;
    for (const std::size_t member : group) {
      list_[member].tensor = memory.narrow(0, begin, shapes[member][0]).requires_grad_(list_[member].trained);
      begin += shapes[member][0];
    }
  }
}

std::vector<std::size_t> ParameterSet::side_by_side(const std::string& name) const {
  constexpr std::string_view kFirst = "q_proj.weight";
  if (!name.ends_with(kFirst)) {
    return {index_.at(name)};
  }
  const std::string prefix = name.substr(0, name.size() - kFirst.size());
  return {index_.at(name), index_.at(prefix + "k_proj.weight"), index_.at(prefix + "v_proj.weight")};
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
    case at::kByte:
      return Dtype::kU8;
    default:
      fail("tensors cannot be stored as ", c10::toString(type));
  }
}

}  // namespace phalanx
