// A run of several ranks: the program checks and locks everything once, Python starts the ranks.
#pragma once
#include "core/json.h"

#include <cstdint>

namespace phalanx {

// Trains with `config`, a resolved RunConfig, on `ranks` processes. Under torchrun, which has started them already, it hands the
// configuration over and waits for their end. Returns the exit code of the run.
int run_ranks(const Json& config, std::int64_t ranks);

}  // namespace phalanx
