// NCCL for ranks that are threads of one process and buffers in CPU memory, with verbs for damage.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "collective/nccl/nccl_api.h"

namespace ckpt::testing {

/// A table whose communicators work as NCCL's: made when all have asked, a group call complete when
/// all have made it. What is wrong about the calls of the ranks (other roots or sizes, calls after
/// an abort, communicators that are not freed) is counted.
std::shared_ptr<const NcclApi> fake_nccl();

struct FakeNccl {
  /// False: a communicator is there at once for whoever asks, so that one thread can make several.
  static void wait_for_members(bool wait);
  /// From now on `watcher` is told of every group call of a member (its number, and the calls it
  /// has made before) on the thread that makes it, before the call has any effect. Null: nobody.
  static void watch_groups(std::function<void(int member, std::size_t group)> watcher);
  /// The next group call of any rank is found to have failed with this.
  static void fail_next_group(NcclResult result);
  /// From now on every communicator is found to have failed with this, whatever it has queued;
  /// kNcclSuccess: no more.
  static void fail_all(NcclResult result);
  static int mistakes();
  /// Communicators that live.
  static int alive();
};

}  // namespace ckpt::testing
