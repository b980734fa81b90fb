#include "parameter_server/kept_buffers.h"

#include <chrono>
#include <utility>

namespace ckpt {
namespace {

// When the server ends: others that keep theirs may have staging open for long, but use it no more.
constexpr std::chrono::milliseconds kPatienceAtEnd{300};

}  // namespace

std::uint64_t PassMemory::bytes() const {
  const auto size = [](const auto& buffer) { return buffer ? buffer->size() : 0; };
  return size(ring) + size(fill_staging) + (receives_on_device ? size(receive_staging) : 0);
}

KeptBuffers::~KeptBuffers() { release(Deadline::after(kPatienceAtEnd)); }

std::uint64_t KeptBuffers::offer(const std::vector<int>& recipients) const {
  if (!set_) return kNothingYet;
  return owner_.recipients == recipients ? owner_.id : kNotKept;
}

std::uint64_t KeptBuffers::bytes(const std::vector<int>& recipients) const {
  return set_ && owner_.recipients == recipients ? set_->bytes() : 0;
}

std::optional<PassMemory> KeptBuffers::take() { return std::exchange(set_, std::nullopt); }

void KeptBuffers::put(PassMemory set, std::uint64_t id, std::vector<int> recipients,
                      std::string checkpoint) {
  set_ = std::move(set);
  owner_ = {id, std::move(recipients), std::move(checkpoint)};
}

void KeptBuffers::release() { release(Deadline::after(ClosingMemory::kPatience)); }

void KeptBuffers::release(Deadline deadline) {
  if (!set_) return;
  const auto set = std::make_shared<PassMemory>(*take());
  set->opened.clear();
  set->receive_pinned.reset();
  if (!set->receives_on_device) set->receive_staging.reset();
  set->ring.reset();  // workers had it, and have released it
  if (!set->has_device_staging() || !set->guard) return;
  closing_.free_when_closed(
      "staging that was kept", set, [set] { return set->guard->in_use(); }, deadline);
}

void KeptBuffers::release_of(const std::string& checkpoint) {
  if (set_ && owner_.checkpoint == checkpoint) release();
}

}  // namespace ckpt
