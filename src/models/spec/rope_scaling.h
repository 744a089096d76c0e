// The inverse frequencies of rotary position embedding, with the scaling kinds that config.json may carry.
#pragma once
#include "models/spec/config_reader.h"
#include "ops/specs.h"

#include <cstdint>

namespace phalanx {

// Reads `rope_parameters` (Transformers v5) or `rope_theta` with `rope_scaling` (released files). Kinds: default, linear,
// dynamic, yarn, llama3; the formulas are those of Transformers' modeling_rope_utils, in fp32 as there. Throws ConfigError for
// another kind or a missing field.
RopeSpec read_rope(const ConfigReader& config, std::int64_t head_dim, std::int64_t max_positions,
                   double default_theta);

}  // namespace phalanx
