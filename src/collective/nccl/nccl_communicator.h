// A non-blocking NCCL communicator: every step of it can be ended early.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "collective/nccl/nccl_api.h"
#include "device/device.h"

namespace ckpt {

/// One broadcast of a group call. `root` counts members.
struct NcclBroadcast {
  const std::byte* from;  ///< read on the root only
  std::byte* to;
  std::uint64_t bytes;
  int root;
};

/// Used by one thread at a time; abort() from any. Makes its GPU current on the calling thread for
/// each call: without one NCCL would make a context on the first GPU, which is another rank's.
class NcclCommunicator {
 public:
  /// Collective over `members` (ranks, ascending), on the GPU `device`, which outlives it. Waits
  /// for all of them, until the deadline.
  static Result<std::unique_ptr<NcclCommunicator>> create(std::shared_ptr<const NcclApi> api,
                                                          const NcclUniqueId& id,
                                                          std::vector<int> members, int rank,
                                                          Device& device, Deadline deadline,
                                                          AbortSignal& abort);
  /// Aborts what is under way.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  const std::vector<int>& members() const { return members_; }
  /// The member number of `rank`, which is one.
  int member(int rank) const;

  /// Queues one group call on `stream` (a cudaStream_t). All members make the same calls in the
  /// same order. Returns when the call is queued; complete it is when the stream is past it.
  Status broadcast(std::span<const NcclBroadcast> group, void* stream, Deadline deadline,
                   AbortSignal& abort);
  /// An error that NCCL has found meanwhile.
  Status check();
  /// Ends everything under way, here; the others must abort theirs. Nothing else can be done with
  /// it afterwards. Repeated calls are fine.
  void abort();
  bool usable() const { return usable_; }
  /// Collective: frees it when all is complete. Aborts it, here, at the deadline or when
  /// `abort_signal` is raised: a member that has gone does not come.
  void release(Deadline deadline, AbortSignal& abort_signal);

 private:
  NcclCommunicator(std::shared_ptr<const NcclApi> api, std::vector<int> members, Device& device)
      : api_(std::move(api)), members_(std::move(members)), device_(device) {}
  Status settle(int result, const char* what, Deadline deadline, AbortSignal& abort);
  Status failure(int result, const char* what) const;

  const std::shared_ptr<const NcclApi> api_;
  const std::vector<int> members_;
  Device& device_;
  NcclHandle handle_ = nullptr;
  std::atomic<bool> usable_{false};
};

}  // namespace ckpt
