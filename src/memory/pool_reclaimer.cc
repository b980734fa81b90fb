#include "memory/pool_reclaimer.h"

#include <utility>

namespace ckpt {

void PoolReclaimer::reclaim(std::unique_ptr<HostPool> pool) {
  const std::lock_guard lock(mutex_);
  threads_.emplace_back([pool = std::move(pool)]() mutable { pool.reset(); });
}

void PoolReclaimer::wait() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    threads = std::exchange(threads_, {});
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ckpt
