// Whether the experts of a model can be spread over ranks.
#pragma once
#include "models/spec/model_spec.h"

#include <cstdint>

namespace phalanx {

// Throws ConfigError when a layer has fewer experts than `ep_size`.
void check_expert_shares(const ModelSpec& spec, std::int64_t ep_size);

}  // namespace phalanx
