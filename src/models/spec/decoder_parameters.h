// What Llama-like decoders have in common: the outer fields of config.json and the parameters of each kind of layer.
#pragma once
#include "models/spec/config_reader.h"
#include "models/spec/model_spec.h"

#include <vector>

namespace phalanx {

// Defaults of the family's configuration class, for fields that config.json leaves out.
struct CommonDefaults {
  std::int64_t vocab_size;
  std::int64_t hidden_size;
  std::int64_t max_positions;
};

// Reads family, architecture, sizes, norm_eps, initializer_range, tied_head, the auxiliary loss, dtype and keeps the config.
void read_common(const ConfigReader& config, const CommonDefaults& defaults, ModelSpec& spec);

// Embedding, layers, final norm and (untied) head of `spec`, with the names, shapes and order of Transformers' modules.
std::vector<ParameterSpec> decoder_parameters(const ModelSpec& spec);

}  // namespace phalanx
