#include "memory/shared_pool.h"

#include "base/strings.h"

namespace ckpt {

Result<HostPool*> SharedPool::take(const std::string& user, std::uint64_t bytes,
                                   const HostPoolOptions& options) {
  const std::lock_guard lock(mutex_);
  if (user_) {
    return failed_precondition(concat("checkpoint ", quoted(*user_),
                                      " uses the shared pool: unregister it before ", quoted(user),
                                      " is registered with use_shared_memory_pool"));
  }
  if (pool_ == nullptr || pool_->anonymous_bytes() < bytes) {
    pool_.reset();  // both at once would double the peak
    CKPT_ASSIGN_OR_RETURN(pool_, HostPool::create(bytes, options));
  }
  user_ = user;
  return pool_.get();
}

void SharedPool::give_back(const std::string& user) {
  const std::lock_guard lock(mutex_);
  if (user_ == user) user_.reset();
}

void SharedPool::release() {
  const std::lock_guard lock(mutex_);
  if (!user_) pool_.reset();
}

std::uint64_t SharedPool::bytes() const {
  const std::lock_guard lock(mutex_);
  return pool_ == nullptr ? 0 : pool_->anonymous_bytes();
}

}  // namespace ckpt
