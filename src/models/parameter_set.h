// The parameters of a model in memory, by name. The forward pass is a function of this set.
#pragma once
#include "models/spec/model_spec.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace phalanx {

struct Parameter {
  std::string name;
  at::Tensor tensor;  // of the spec's shape, a leaf of the tape
  bool decay = true;  // weight decay applies
};

class ParameterSet {
 public:
  ParameterSet() = default;
  // Uninitialised tensors of the spec's shapes.
  ParameterSet(const ModelSpec& spec, at::ScalarType dtype, at::Device device);

  // Throws Error when there is none of that name.
  const at::Tensor& at(const std::string& name) const;
  at::Tensor find(const std::string& name) const;  // undefined when there is none
  const std::vector<Parameter>& list() const { return list_; }
  std::vector<Parameter>& list() { return list_; }

 private:
  std::vector<Parameter> list_;  // in module order
  std::unordered_map<std::string, std::size_t> index_;
};

at::ScalarType to_scalar_type(Dtype dtype);  // throws Error for a dtype no parameter can have
Dtype to_dtype(at::ScalarType type);

}  // namespace phalanx
