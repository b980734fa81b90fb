#include "parameter_server/kept_buffers.h"

#include <chrono>
#include <utility>

namespace ckpt {
namespace {

// Ranks of the host that still have staging open close it when they unregister or take part in an
// update; those that were killed never say so.
constexpr std::chrono::seconds kClosingPatience{60};
constexpr std::chrono::milliseconds kPatienceAtEnd{300};

}  // namespace

std::uint64_t PassMemory::bytes() const {
  const auto size = [](const auto& buffer) { return buffer ? buffer->size() : 0; };
  return size(ring) + size(fill_staging);
}

void PassBoard::say_closed() {
  if (progress) progress->publish(layout->closed(rank), 1);
}

void PassBoard::wait_until_closed(Deadline deadline, AbortSignal& stop) const {
  if (!progress) return;
  for (const int other : layout->local_ranks()) {
    if (!progress->wait(layout->closed(other), 1, deadline, stop).is_ok()) return;
  }
}

KeptBuffers::~KeptBuffers() {
  if (set_) {
    set_->memory.opened.clear();
    set_->board.say_closed();
    if (set_->memory.fill_staging) {
      set_->board.wait_until_closed(Deadline::after(kPatienceAtEnd), stop_);
    }
    set_.reset();
  }
  stop_.raise(aborted("the server ends"));
  leaving_.clear();  // waits for them
}

std::uint64_t KeptBuffers::offer(const std::vector<int>& recipients) const {
  if (!set_) return kNothingYet;
  return owner_.recipients == recipients ? owner_.id : kNotKept;
}

std::uint64_t KeptBuffers::bytes(const std::vector<int>& recipients) const {
  return set_ && owner_.recipients == recipients ? set_->memory.bytes() : 0;
}

std::optional<KeptSet> KeptBuffers::take() { return std::exchange(set_, std::nullopt); }

void KeptBuffers::put(KeptSet set, std::uint64_t id, std::vector<int> recipients,
                      std::string checkpoint) {
  set_ = std::move(set);
  owner_ = {id, std::move(recipients), std::move(checkpoint)};
}

void KeptBuffers::release() {
  if (!set_) return;
  set_->memory.opened.clear();
  set_->memory.receive_pinned.reset();
  set_->memory.receive_staging.reset();
  set_->memory.ring.reset();  // workers had it, and have released it
  set_->board.say_closed();
  KeptSet set = *take();
  if (!set.memory.fill_staging) return;
  std::erase_if(leaving_, [](const std::future<void>& gone) {
    return gone.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  leaving_.push_back(std::async(std::launch::async, [this, set = std::move(set)]() mutable {
    set.board.wait_until_closed(Deadline::after(kClosingPatience), stop_);
    set.memory.fill_staging.reset();
  }));
}

void KeptBuffers::release_of(const std::string& checkpoint) {
  if (set_ && owner_.checkpoint == checkpoint) release();
}

}  // namespace ckpt
