#include "memory/pool_reclaimer.h"

#include <chrono>
#include <utility>

namespace ckpt {
namespace {

// From the end of one checkpoint to the registration of the next, in a loop that does one after the
// other.
constexpr std::chrono::milliseconds kMoment{200};

}  // namespace

void PoolReclaimer::reclaim(std::unique_ptr<HostPool> pool) {
  // Nobody can take it over, and its pages fill /dev/shm, where the next checkpoint may be on its
  // way.
  if (!pool->files().empty()) return;
  const std::lock_guard lock(mutex_);
  Leaving& leaving = leaving_.emplace_back();
  leaving.pool = std::move(pool);
  leaving.thread = std::thread([this, &leaving] { free_later(leaving); });
}

void PoolReclaimer::free_later(Leaving& leaving) {
  std::unique_ptr<HostPool> pool;
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kMoment, [&] { return hurry_ || leaving.pool == nullptr; });
    pool = std::move(leaving.pool);
  }
}

std::unique_ptr<HostPool> PoolReclaimer::take_back(std::uint64_t bytes) {
  std::list<Leaving> taken;
  std::unique_ptr<HostPool> pool;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = leaving_.begin(); at != leaving_.end(); ++at) {
      if (at->pool == nullptr || at->pool->anonymous_bytes() != bytes || !at->pool->files().empty())
        continue;
      pool = std::move(at->pool);
      taken.splice(taken.begin(), leaving_, at);
      break;
    }
  }
  changed_.notify_all();
  for (Leaving& leaving : taken) leaving.thread.join();
  return pool;
}

void PoolReclaimer::wait() {
  std::list<Leaving> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(leaving_);
    hurry_ = true;
  }
  changed_.notify_all();
  for (Leaving& leaving : all) leaving.thread.join();
  const std::lock_guard lock(mutex_);
  hurry_ = false;
}

}  // namespace ckpt
