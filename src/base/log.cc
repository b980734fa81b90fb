#include "base/log.h"

#include <memory>
#include <mutex>

namespace ckpt {
namespace {
std::mutex mutex;
std::shared_ptr<const LogSink> current;
}  // namespace

void set_log_sink(LogSink sink) {
  auto next = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  const std::lock_guard lock(mutex);
  current.swap(next);  // what was there goes when the lock is free
}

void log_line(LogLevel level, std::string_view text) {
  std::shared_ptr<const LogSink> sink;
  {
    const std::lock_guard lock(mutex);
    sink = current;
  }
  if (sink) (*sink)(level, text);
}

}  // namespace ckpt
