#include "models/spec/weight_map.h"

#include "core/error.h"
#include "models/spec/model_spec.h"

namespace phalanx {
namespace {

WeightForm whole(const ParameterSpec& parameter, const std::string& on_disk) {
  return {{Placement{on_disk, parameter.shape, parameter.name, 0, false}}};
}

WeightForm whole(const ParameterSpec& parameter) { return whole(parameter, parameter.name); }

}  // namespace

WeightRule same_name(const ParameterSpec& parameter) { return {parameter.name, {whole(parameter)}}; }

WeightRule renamed(const ParameterSpec& parameter, const std::string& on_disk) {
  return on_disk == parameter.name
             ? same_name(parameter)
             : WeightRule{parameter.name, {whole(parameter, on_disk), whole(parameter)}};
}

WeightRule stacked_experts(const ParameterSpec& parameter, const std::string& prefix,
                           const std::vector<std::string>& suffixes) {
  PHALANX_CHECK(
      parameter.shape.size() == 3 && parameter.shape[1] % static_cast<std::int64_t>(suffixes.size()) == 0,
      Error, "weight map of ", parameter.name, ": ", suffixes.size(),
      " tensors per expert cannot be stacked into its rows");
  const std::int64_t experts = parameter.shape[0];
  const std::int64_t rows = parameter.shape[1] / static_cast<std::int64_t>(suffixes.size());
  const std::int64_t columns = parameter.shape[2];
  WeightForm one_by_one;
  std::int64_t offset = 0;
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    for (const std::string& suffix : suffixes) {
      one_by_one.placements.push_back(
          {concat(prefix, expert, ".", suffix), {rows, columns}, parameter.name, offset, false});
      offset += rows * columns;
    }
  }
  return {parameter.name, {std::move(one_by_one), whole(parameter)}};
}

}  // namespace phalanx
