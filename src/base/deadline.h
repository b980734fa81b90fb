// A point in time by which a wait must have ended. Every wait of the engine takes one.
#pragma once

#include <algorithm>
#include <chrono>

namespace ckpt {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(Clock::duration duration) { return Deadline(Clock::now() + duration); }
  static Deadline after_seconds(double seconds) {
    // About 30 years: far enough for "never", near enough not to overflow.
    seconds = std::clamp(seconds, 0.0, 1e9);
    return after(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  }
  static Deadline at(Clock::time_point when) { return Deadline(when); }

  Clock::time_point when() const { return when_; }
  bool expired() const { return Clock::now() >= when_; }
  /// Never negative.
  Clock::duration remaining() const {
    return std::max(when_ - Clock::now(), Clock::duration::zero());
  }
  double remaining_seconds() const { return std::chrono::duration<double>(remaining()).count(); }
  /// For poll(2): whole milliseconds, rounded up, at most `limit`.
  int poll_ms(int limit = 1000 * 3600) const {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(remaining()).count();
    return static_cast<int>(std::min<long long>(ms, limit));
  }
  /// The earlier of the two.
  Deadline earlier(Deadline other) const { return Deadline(std::min(when_, other.when_)); }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

}  // namespace ckpt
