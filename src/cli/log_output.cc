#include "cli/log_output.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace ckpt {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

void log_to_stderr(LogLevel least) {
  const auto logger = std::make_shared<spdlog::logger>(
      "checkpoint-engine", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e %^%l%$ %v");
  logger->set_level(spdlog_level(least));
  logger->flush_on(spdlog::level::debug);
  set_log_sink([logger](LogLevel level, std::string_view text) {
    logger->log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
  });
}

}  // namespace ckpt
