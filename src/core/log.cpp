#include "core/log.h"

#include <mutex>
#include <utility>

namespace phalanx {
namespace {

// The one process-wide setting of the library: where its messages go.
struct SinkState {
  std::mutex mutex;
  LogSink sink;
};

SinkState& state() {
  static SinkState instance;
  return instance;
}

}  // namespace

const char* log_level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      break;
  }
  return "error";
}

LogSink set_log_sink(LogSink sink) {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().sink, std::move(sink));
}

void log_message(LogLevel level, std::string_view message) {
  const std::lock_guard lock(state().mutex);
  if (state().sink) {
    state().sink(level, message);
  }
}

}  // namespace phalanx
