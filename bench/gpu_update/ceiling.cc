#include "ceiling.h"

#include <chrono>
#include <deque>

#include "base/host.h"
#include "base/strings.h"

namespace ckpt::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kBuffer = 256 << 20;
constexpr std::size_t kWindow = 4;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Result<std::unique_ptr<Upload>> Upload::create(Device& device) {
  auto upload = std::make_unique<Upload>();
  CKPT_ASSIGN_OR_RETURN(upload->from_, PinnedMemory::create(device, kBuffer));
  CKPT_ASSIGN_OR_RETURN(upload->to_, device.allocate(kBuffer, concat("gpu-update-", random_id())));
  upload->to_->close_to_others();
  CKPT_ASSIGN_OR_RETURN(upload->stream_, device.make_stream());
  return upload;
}

Result<double> Upload::measure(std::uint64_t chunk, double seconds) {
  AbortSignal never;
  std::deque<CopyStream::Ticket> queued;
  const auto finish_oldest = [&]() -> Status {
    CKPT_RETURN_IF_ERROR(stream_->wait(queued.front(), Deadline::after_seconds(60), never));
    queued.pop_front();
    return Status();
  };
  std::uint64_t bytes = 0;
  const auto begin = Clock::now();
  while (seconds_since(begin) < seconds) {
    const std::uint64_t at = bytes % kBuffer;
    CKPT_RETURN_IF_ERROR(stream_->copy(to_->data() + at, from_->data() + at, chunk));
    CKPT_ASSIGN_OR_RETURN(const auto ticket, stream_->mark());
    queued.push_back(ticket);
    bytes += chunk;
    if (queued.size() == kWindow) CKPT_RETURN_IF_ERROR(finish_oldest());
  }
  while (!queued.empty()) CKPT_RETURN_IF_ERROR(finish_oldest());
  return static_cast<double>(bytes) / seconds_since(begin) / 1e9;
}

}  // namespace ckpt::bench
