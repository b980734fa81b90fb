// How far an update is, for whoever watches.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace ckpt {

/// "[#####-----]  50 %  2.00 of 4.00 GiB  1.25 GB/s  2 s left", at most 80 columns; without the
/// brackets where there is no terminal (`bar` false). Pure.
std::string progress_line(std::uint64_t done, std::uint64_t total, double seconds, bool bar = true);

enum class ProgressKind {
  kNone,
  kBar,    ///< one line that is written over: a terminal
  kLines,  ///< a line now and then: a log
};

/// Writes to stderr. All methods from any thread.
class ProgressDisplay {
 public:
  explicit ProgressDisplay(ProgressKind kind) : kind_(kind) {}
  ~ProgressDisplay() { end(); }

  /// Rates count from here.
  void begin();
  /// Shows the state if the last one was shown long enough ago, and always the last.
  void update(std::uint64_t done, std::uint64_t total);
  /// Leaves the cursor on a line of its own.
  void end();

 private:
  using Clock = std::chrono::steady_clock;

  const ProgressKind kind_;
  std::mutex mutex_;
  bool open_line_ = false;
  Clock::time_point start_ = Clock::now(), shown_ = start_;
};

}  // namespace ckpt
