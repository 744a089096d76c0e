// The parameters of Llama-like decoders.
#pragma once
#include "models/spec/model_spec.h"

#include <vector>

namespace phalanx {

// Embedding, layers, final norm and (untied) head of `spec`, with the names and shapes of Transformers' modules.
std::vector<ParameterSpec> decoder_parameters(const ModelSpec& spec);

}  // namespace phalanx
