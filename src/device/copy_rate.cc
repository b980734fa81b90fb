#include "device/copy_rate.h"

#include <chrono>
#include <deque>

#include "base/strings.h"

namespace ckpt {
namespace {

constexpr std::size_t kWindow = 4;
constexpr double kPatienceSeconds = 60;

}  // namespace

Result<double> measure_copy_rate(CopyStream& stream, std::byte* to, const std::byte* from,
                                 std::uint64_t bytes, std::uint64_t chunk, double seconds) {
  using Clock = std::chrono::steady_clock;
  if (chunk == 0 || chunk > bytes) {
    return invalid_argument(concat("chunks of ", chunk, " bytes in buffers of ", bytes));
  }
  const auto passed = [begin = Clock::now()] {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  AbortSignal never;
  std::deque<CopyStream::Ticket> queued;
  std::uint64_t copied = 0, at = 0;
  bool more = true;
  while (more || !queued.empty()) {
    if (!more || queued.size() == kWindow) {
      CKPT_RETURN_IF_ERROR(
          stream.wait(queued.front(), Deadline::after_seconds(kPatienceSeconds), never));
      queued.pop_front();
      more = passed() < seconds;
      continue;
    }
    if (at + chunk > bytes) at = 0;
    CKPT_RETURN_IF_ERROR(stream.copy(to + at, from + at, chunk));
    CKPT_ASSIGN_OR_RETURN(const auto ticket, stream.mark());
    queued.push_back(ticket);
    at += chunk;
    copied += chunk;
  }
  return static_cast<double>(copied) / passed() / 1e9;
}

}  // namespace ckpt
