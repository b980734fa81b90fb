#include "cli/progress_display.h"

#include <algorithm>
#include <cstdio>

#include "base/strings.h"

namespace ckpt {

std::string progress_line(std::uint64_t done, std::uint64_t total, double seconds, bool bar) {
  constexpr int kWidth = 24;
  const double share =
      total == 0 ? 1.0 : static_cast<double>(std::min(done, total)) / static_cast<double>(total);
  const int filled = static_cast<int>(share * kWidth);
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  char text[128];
  std::string drawn;
  if (bar) drawn = concat('[', std::string(filled, '#'), std::string(kWidth - filled, '-'), "] ");
  std::snprintf(text, sizeof(text), "%s%3d %%  %s of %s  %.2f GB/s", drawn.c_str(),
                static_cast<int>(share * 100), format_bytes(done).c_str(),
                format_bytes(total).c_str(), rate / 1e9);
  if (done >= total || rate <= 0) return text;
  const double left = static_cast<double>(total - done) / rate;
  char rest[32];
  std::snprintf(rest, sizeof(rest), left < 10 ? "  %.1f s left" : "  %.0f s left",
                std::min(left, 99999.0));
  return text + std::string(rest);
}

void ProgressDisplay::begin() {
  const std::lock_guard lock(mutex_);
  start_ = shown_ = Clock::now();
}

void ProgressDisplay::update(std::uint64_t done, std::uint64_t total) {
  using std::chrono_literals::operator""ms;
  if (kind_ == ProgressKind::kNone) return;
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const auto interval = kind_ == ProgressKind::kBar ? 100ms : 2000ms;
  if (done < total && now - shown_ < interval) return;
  shown_ = now;
  const std::string line =
      progress_line(done, total, std::chrono::duration<double>(now - start_).count(),
                    kind_ == ProgressKind::kBar);
  if (kind_ == ProgressKind::kBar) {
    std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
    open_line_ = true;
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(stderr);
}

void ProgressDisplay::end() {
  const std::lock_guard lock(mutex_);
  if (open_line_) std::fputc('\n', stderr);
  open_line_ = false;
}

}  // namespace ckpt
