#include "engine.h"

#include "bind/engine_c_api.h"
#include "core/engine_library.h"
#include "core/error.h"

#include <vector>

namespace phalanx {

int run_engine(const std::string& command, const Json& input) {
  const EngineLibrary library(find_engine(this_program()));
  const auto run = library.function<decltype(phalanx_engine_run)>("phalanx_engine_run");
  std::vector<char> message(1 << 16, '\0');
  const int code = run(command.c_str(), input.dump().c_str(), message.data(), message.size());
  if (code == kPhalanxOk || code == kPhalanxInterrupted) {
    return code;
  }
  if (code == kPhalanxBadInput) {
    fail<ConfigError>(message.data());
  }
  fail(message.data());
}

}  // namespace phalanx
