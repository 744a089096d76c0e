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
  at::Tensor tensor;    // of the spec's shape, a leaf of the tape
  bool decay = true;    // weight decay applies
  bool fp32 = false;    // held in fp32 where the others are narrower
  bool trained = true;  // false: a buffer, which has no gradient
  // Of a parameter of experts that are spread over ranks: which of its `total_rows` experts this rank holds.
  std::int64_t first_row = 0;
  std::int64_t total_rows = 0;  // 0: the tensor is the whole parameter
};

class ParameterSet {
 public:
  ParameterSet() = default;
  // Uninitialised tensors of the spec's shapes. The weights of q, k and v of a layer lie side by side, so that their products
  // can run as one.
  ParameterSet(const ModelSpec& spec, at::ScalarType dtype, at::Device device);
  // Of the experts, the share of one of `parts` ranks.
  ParameterSet(const ModelSpec& spec, at::ScalarType dtype, at::Device device, int part, int parts);

  // The same parameters elsewhere or in another dtype.
  ParameterSet to(at::ScalarType dtype, at::Device device) const;

  // Of all of them, but for those held in fp32; a model has at least one parameter.
  at::ScalarType dtype() const { return list_.front().tensor.scalar_type(); }
  at::Device device() const { return list_.front().tensor.device(); }

  // Throws Error when there is none of that name.
  const at::Tensor& at(const std::string& name) const;
  at::Tensor find(const std::string& name) const;  // undefined when there is none
  const std::vector<Parameter>& list() const { return list_; }
  std::vector<Parameter>& list() { return list_; }

 private:
  std::vector<std::size_t> side_by_side(
      const std::string& name) const;  // parameters that share memory, in order
  using Shapes = std::vector<std::vector<std::int64_t>>;
  void allocate(const Shapes& shapes, at::ScalarType dtype, at::Device device);  // for the names in list_

  std::vector<Parameter> list_;  // in module order
  std::unordered_map<std::string, std::size_t> index_;
};

at::ScalarType to_scalar_type(Dtype dtype);  // throws Error for a dtype no parameter can have
Dtype to_dtype(at::ScalarType type);

}  // namespace phalanx
