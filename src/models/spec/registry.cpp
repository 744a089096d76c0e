#include "models/spec/registry.h"

#include "models/spec/decoder_weights.h"

namespace phalanx {

// Each is defined in the file of its name; decoder_weights serves every family whose checkpoints have the usual names.
ModelSpec glm4_moe_spec(const ConfigReader& config);
ModelSpec mixtral_spec(const ConfigReader& config);
WeightMap mixtral_weights(const ModelSpec& spec);
ModelSpec olmoe_spec(const ConfigReader& config);
ModelSpec qwen2_moe_spec(const ConfigReader& config);
ModelSpec qwen3_moe_spec(const ConfigReader& config);

const std::vector<ModelFamily>& model_families() {
  static const std::vector<ModelFamily> kFamilies = {
      {"glm4_moe", "Glm4MoeForCausalLM", glm4_moe_spec, decoder_weights},
      {"mixtral", "MixtralForCausalLM", mixtral_spec, mixtral_weights},
      {"olmoe", "OlmoeForCausalLM", olmoe_spec, decoder_weights},
      {"qwen2_moe", "Qwen2MoeForCausalLM", qwen2_moe_spec, decoder_weights},
      {"qwen3_moe", "Qwen3MoeForCausalLM", qwen3_moe_spec, decoder_weights},
  };
  return kFamilies;
}

const ModelFamily* find_family(std::string_view model_type) {
  for (const ModelFamily& family : model_families()) {
    if (family.model_type == model_type) {
      return &family;
    }
  }
  return nullptr;
}

}  // namespace phalanx
