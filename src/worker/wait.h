// Waiting for a descriptor under a deadline and an abort signal.
#pragma once

#include <initializer_list>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

enum class Wake { kReadable, kAborted, kExpired };

/// Until one of `fds` is readable, `abort` is raised or the deadline has passed; abort wins over
/// readable. Negative descriptors are skipped; a null `abort` is never raised.
Result<Wake> wait_for_any(std::initializer_list<int> fds, Deadline deadline, AbortSignal* abort);

/// True when `fd` is readable now.
bool readable_now(int fd);

/// An epoll descriptor: readable when one of the descriptors added to it is.
class PollSet {
 public:
  static Result<PollSet> create();
  int fd() const { return fd_.get(); }
  Status add(int fd);
  /// Removing what was closed or never added is fine.
  void remove(int fd);

 private:
  UniqueFd fd_;
};

}  // namespace ckpt
