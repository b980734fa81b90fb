#include "parameter_server/closing_memory.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/strings.h"

namespace ckpt {
namespace {

// Between two looks: others close what they have open within milliseconds, or much later.
constexpr std::chrono::milliseconds kFirstPause{1}, kLongestPause{20};
constexpr std::chrono::milliseconds kAbortCheck{5};

}  // namespace

ClosingMemory::~ClosingMemory() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool ClosingMemory::is_over(Closing& closing) {
  if (!closing.in_use()) return true;
  if (!closing.deadline.expired()) return false;
  log_warning(closing.what, " is freed although another process of this host still has it open: ",
              "it lives, but has not closed it in time");
  return true;
}

void ClosingMemory::free_when_closed(std::string what, std::shared_ptr<void> memory,
                                     std::function<bool()> in_use, Deadline deadline) {
  Closing closing{std::move(what), std::move(memory), std::move(in_use), deadline};
  if (is_over(closing)) return;
  const std::lock_guard lock(mutex_);
  closing_.push_back(std::move(closing));
  if (!thread_.joinable()) thread_ = std::thread([this] { watch(); });
  changed_.notify_all();
}

void ClosingMemory::watch() {
  auto pause = kFirstPause;
  std::unique_lock lock(mutex_);
  while (true) {
    if (closing_.empty()) {
      pause = kFirstPause;
      changed_.wait(lock, [&] { return ends_ || !closing_.empty(); });
      if (closing_.empty()) return;
    }
    // What is looked at stays in the list meanwhile, and others only add behind it.
    bool dropped = false;
    for (auto it = closing_.begin(); it != closing_.end();) {
      lock.unlock();
      const bool over = is_over(*it);
      if (over) {
        it->in_use = nullptr;
        it->memory.reset();
      }
      lock.lock();
      it = over ? closing_.erase(it) : std::next(it);
      dropped |= over;
    }
    if (dropped) changed_.notify_all();
    if (closing_.empty()) continue;
    changed_.wait_for(lock, pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

bool ClosingMemory::empty() const {
  const std::lock_guard lock(mutex_);
  return closing_.empty();
}

Status ClosingMemory::wait(Deadline deadline, AbortSignal& abort) {
  std::unique_lock lock(mutex_);
  while (!closing_.empty()) {
    if (abort.raised()) return abort.cause();
    if (deadline.expired()) {
      return deadline_exceeded(
          concat("another process of this host still has ", closing_.front().what, " open"));
    }
    changed_.wait_for(lock, kAbortCheck);
  }
  return Status();
}

}  // namespace ckpt
