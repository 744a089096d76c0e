// The engine, opened when there is something to compute.
#pragma once
#include "core/json.h"

#include <string>

namespace phalanx {

// Loads the engine and runs one of the commands of bind/engine_c_api.h in it. Returns a PhalanxExit; a failure throws
// ConfigError or Error with the engine's message.
int run_engine(const std::string& command, const Json& input);

}  // namespace phalanx
