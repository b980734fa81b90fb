// Pools that nobody needs any more are unpinned and freed while their owner goes on: the driver
// takes a second for 50 GB.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "memory/host_pool.h"

namespace ckpt {

/// All methods from any thread. The destructor waits.
class PoolReclaimer {
 public:
  PoolReclaimer() = default;
  ~PoolReclaimer() { wait(); }
  PoolReclaimer(const PoolReclaimer&) = delete;
  PoolReclaimer& operator=(const PoolReclaimer&) = delete;

  /// Returns at once. Nothing may copy from the pool any more.
  void reclaim(std::unique_ptr<HostPool> pool);
  /// Returns when the memory of all pools given so far has gone back to the system.
  void wait();

 private:
  std::mutex mutex_;
  std::vector<std::thread> threads_;
};

}  // namespace ckpt
