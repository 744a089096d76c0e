// The families that are built, listed in registry.cpp.
#pragma once
#include "models/spec/config_reader.h"
#include "models/spec/model_spec.h"

#include <string_view>
#include <vector>

namespace phalanx {

struct ModelFamily {
  const char* model_type;                       // of config.json
  const char* architecture;                     // Transformers' class
  ModelSpec (*make_spec)(const ConfigReader&);  // all but parameters and weights
  WeightMap (*make_weights)(const ModelSpec&);
};

const std::vector<ModelFamily>& model_families();
const ModelFamily* find_family(std::string_view model_type);  // nullptr when it is not built

}  // namespace phalanx
