#include "models/spec/registry.h"

#include "models/spec/qwen3_moe.h"

namespace phalanx {

const std::vector<ModelFamily>& model_families() {
  static const std::vector<ModelFamily> kFamilies = {
      {"qwen3_moe", "Qwen3MoeForCausalLM", qwen3_moe_spec},
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
