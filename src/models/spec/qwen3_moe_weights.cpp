#include "models/spec/qwen3_moe.h"

namespace phalanx {

WeightMap qwen3_moe_weights(const ModelSpec& spec) {
  WeightMap map;
  for (const ParameterSpec& parameter : spec.parameters) {
    const std::string prefix = parameter.name.substr(0, parameter.name.rfind('.') + 1);
    if (parameter.name.ends_with(".experts.gate_up_proj")) {
      map.rules.push_back(stacked_experts(parameter, prefix, {"gate_proj.weight", "up_proj.weight"}));
    } else if (parameter.name.ends_with(".experts.down_proj")) {
      map.rules.push_back(stacked_experts(parameter, prefix, {"down_proj.weight"}));
    } else {
      map.rules.push_back(same_name(parameter));
    }
  }
  if (spec.tied_head) {
    map.ignored.push_back("lm_head.weight");
  }
  return map;
}

}  // namespace phalanx
