// The engine's log: lower-case facts, one line each. The core never prints; the host process
// installs a sink.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/strings.h"

namespace ckpt {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Called from any thread, possibly from several at once.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Replaces the sink; an empty one (the default) drops everything.
void set_log_sink(LogSink sink);
void log_line(LogLevel level, std::string_view text);

template <typename... Args>
void log_debug(const Args&... args) {
  log_line(LogLevel::kDebug, concat(args...));
}
template <typename... Args>
void log_info(const Args&... args) {
  log_line(LogLevel::kInfo, concat(args...));
}
template <typename... Args>
void log_warning(const Args&... args) {
  log_line(LogLevel::kWarning, concat(args...));
}
template <typename... Args>
void log_error(const Args&... args) {
  log_line(LogLevel::kError, concat(args...));
}

}  // namespace ckpt
