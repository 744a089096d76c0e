#include "models/spec/decoder_weights.h"

#include "core/error.h"

namespace phalanx {
namespace {

// "model.layers.0.mlp.gate.weight" -> "model.layers.0.block_sparse_moe.gate.weight"
std::string name_on_disk(const std::string& name, const std::string& module) {
  constexpr std::string_view kModule = ".mlp.";
  const std::size_t at = name.find(kModule);
  return at == std::string::npos ? name : std::string(name).replace(at, kModule.size(), "." + module + ".");
}

}  // namespace

WeightMap decoder_weights(const ModelSpec& spec, const ExpertNames& names) {
  WeightMap map;
  for (const ParameterSpec& parameter : spec.parameters) {
    const std::string on_disk = name_on_disk(parameter.name, names.module);
    const std::string prefix = on_disk.substr(0, on_disk.rfind('.') + 1);
    if (parameter.name.ends_with(".experts.gate_up_proj")) {
      map.rules.push_back(stacked_experts(parameter, prefix, names.gate_up));
    } else if (parameter.name.ends_with(".experts.down_proj")) {
      map.rules.push_back(stacked_experts(parameter, prefix, {names.down}));
    } else {
      map.rules.push_back(renamed(parameter, on_disk));
    }
  }
  if (spec.tied_head) {
    map.ignored.push_back("lm_head.weight");
  }
  return map;
}

WeightMap decoder_weights(const ModelSpec& spec) { return decoder_weights(spec, ExpertNames{}); }

}  // namespace phalanx
