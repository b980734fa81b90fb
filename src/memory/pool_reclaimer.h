// Pools that nobody needs any more are unpinned and freed while their owner goes on: the driver
// takes a second for 50 GB. A pool of the same size that is wanted right behind takes the memory
// over, touched and pinned as it is.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "memory/host_pool.h"

namespace ckpt {

/// All methods from any thread. The destructor waits.
class PoolReclaimer {
 public:
  PoolReclaimer() = default;
  ~PoolReclaimer() { wait(); }
  PoolReclaimer(const PoolReclaimer&) = delete;
  PoolReclaimer& operator=(const PoolReclaimer&) = delete;

  /// Returns at once. Nothing may copy from the pool any more. It goes after a moment in which it
  /// may be taken back. A pool with files is unpinned and freed before the return.
  void reclaim(std::unique_ptr<HostPool> pool);
  /// A pool of exactly `bytes` bytes of anonymous memory and nothing else, which has not gone yet:
  /// its pieces may be pinned, its content is that of before. Null: there is none.
  std::unique_ptr<HostPool> take_back(std::uint64_t bytes);
  /// Returns when the memory of all pools given so far has gone back to the system.
  void wait();

 private:
  struct Leaving {
    std::unique_ptr<HostPool> pool;  // null when it goes, or was taken
    std::thread thread;
  };
  void free_later(Leaving& leaving);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool hurry_ = false;
  std::list<Leaving> leaving_;
};

}  // namespace ckpt
