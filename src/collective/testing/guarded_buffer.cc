#include "collective/testing/guarded_buffer.h"

#include <algorithm>
#include <vector>

#include "base/host.h"
#include "base/strings.h"
#include "collective/testing/must.h"

namespace ckpt::testing {
namespace {

constexpr std::uint64_t kGuardBytes = GuardedBuffer::kOffset;
constexpr std::byte kFresh{0xEE}, kGuard{0xA5}, kCanary{0x5A};

}  // namespace

GuardedBuffer::GuardedBuffer(Device& device, std::uint64_t bytes)
    : stream_(must(device.make_stream())),
      buffer_(
          must(device.allocate(bytes + 2 * kGuardBytes, concat("ckpt-spread-test-", random_id())))),
      bytes_(bytes) {
  paint(buffer_->data(), bytes_ + 2 * kGuardBytes, kGuard);
  paint(data(), bytes_, kFresh);
}

std::byte* GuardedBuffer::data() const { return buffer_->data() + kGuardBytes; }

bool GuardedBuffer::guards_hold() {
  return holds(buffer_->data(), kGuardBytes, kGuard) && holds(data() + bytes_, kGuardBytes, kGuard);
}

void GuardedBuffer::paint_canary() { paint(data(), bytes_, kCanary); }

bool GuardedBuffer::canary_holds() { return holds(data(), bytes_, kCanary); }

void GuardedBuffer::paint(std::byte* at, std::uint64_t bytes, std::byte color) {
  const std::vector<std::byte> paint(bytes, color);
  copy(at, paint.data(), bytes);
}

bool GuardedBuffer::holds(const std::byte* at, std::uint64_t bytes, std::byte color) {
  std::vector<std::byte> now(bytes);
  copy(now.data(), at, bytes);
  return std::ranges::all_of(now, [&](std::byte b) { return b == color; });
}

void GuardedBuffer::copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  AbortSignal never;
  must(stream_->copy(to, from, bytes));
  must(stream_->wait(must(stream_->mark()), Deadline::after_seconds(60), never));
}

}  // namespace ckpt::testing
