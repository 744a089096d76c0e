// Messages for the person who runs a program. The library never prints: a program sets a sink, without one
// they are dropped.
#pragma once
#include "core/error.h"

#include <functional>
#include <string>
#include <string_view>

namespace phalanx {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

const char* log_level_name(LogLevel level);  // "debug", "info", "warning", "error"

// Called by one thread at a time.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;

// Replaces the sink of this process; an empty one drops everything. Returns the sink before.
LogSink set_log_sink(LogSink sink);

void log_message(LogLevel level, std::string_view message);

template <class... Pieces>
void log_info(const Pieces&... pieces) {
  log_message(LogLevel::kInfo, concat(pieces...));
}

template <class... Pieces>
void log_warning(const Pieces&... pieces) {
  log_message(LogLevel::kWarning, concat(pieces...));
}

}  // namespace phalanx
