// The inverse frequencies of rotary position embedding, with the scaling kinds that config.json may carry.
#pragma once
#include "models/spec/config_reader.h"
#include "ops/specs.h"

#include <cstdint>
#include <optional>

namespace phalanx {

// Reads `rope_parameters` (Transformers v5) or `rope_theta` with `rope_scaling` (released files). Kinds: default, linear,
// dynamic, yarn, llama3; the formulas are those of Transformers' modeling_rope_utils, in fp32 as there. Throws ConfigError for
// another kind or a missing field, and for a partial_rotary_factor below 1 where the family rotates the whole head.
struct RopeDefaults {
  double theta = 10000.0;
  std::optional<double> partial_rotary_factor = std::nullopt;  // of families that rotate a part of each head
};
RopeSpec read_rope(const ConfigReader& config, std::int64_t head_dim, std::int64_t max_positions,
                   const RopeDefaults& defaults = {});

}  // namespace phalanx
