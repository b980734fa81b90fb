// The reusable pool (`use_shared_memory_pool=True`): checkpoints that are registered one after the
// other use the same memory, so that only the first one pays for touching and pinning it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "memory/host_pool.h"

namespace ckpt {

/// At most one pool, kept between its users, of anonymous memory only: its users do not add files.
/// All methods from any thread.
class SharedPool {
 public:
  /// A pool with at least `bytes` bytes of anonymous memory for checkpoint `user`: the kept one
  /// when it is large enough (its pieces stay pinned, its content is that of the user before), else
  /// a new one, for which the kept one is freed first. Valid until give_back. kFailedPrecondition,
  /// naming the other, while another checkpoint uses it.
  Result<HostPool*> take(const std::string& user, std::uint64_t bytes,
                         const HostPoolOptions& options = {});
  /// Ends the use; the pool is kept. Nothing happens when `user` does not use it.
  void give_back(const std::string& user);
  /// Frees the kept pool, unless somebody uses it.
  void release();
  /// Of the kept pool; 0 when there is none.
  std::uint64_t bytes() const;

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<HostPool> pool_;
  std::optional<std::string> user_;
};

}  // namespace ckpt
