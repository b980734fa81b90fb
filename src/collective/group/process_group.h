// Ranks that hand each other bytes, for programs that want collectives beside updates: agreement
// and what is small goes through the hub, what is large from rank to rank by one-sided reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "control/control_client.h"
#include "transport/transport.h"

namespace ckpt {

/// One rank's seat. All methods from any thread; those over `ranks` are made by each of these
/// ranks, this one included, with `ranks` in the same order. A `tag` belongs to one set of ranks,
/// which make its calls one after the other. Their errors are those of ControlClient, and the first
/// error of any rank is that of all.
class ProcessGroup {
 public:
  /// Waits until all ranks have joined the hub at `options.hub`.
  static Result<std::unique_ptr<ProcessGroup>> join(const JoinOptions& options, Deadline deadline);
  /// Leaves.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return control_->rank(); }
  int world_size() const { return control_->world_size(); }

  Status barrier(std::string_view tag, const std::vector<int>& ranks, Deadline deadline,
                 AbortSignal& abort);
  /// What each of `ranks` gave, in their order.
  Result<std::vector<ControlClient::Bytes>> all_gather(std::string_view tag,
                                                       const std::vector<int>& ranks,
                                                       std::span<const std::byte> mine,
                                                       Deadline deadline, AbortSignal& abort);
  /// Makes `memory` of all of `ranks` what it is on rank `source`. In as many rounds as a binary
  /// tree is deep, so that no rank sends to many. kInvalidArgument on all of them when their sizes
  /// differ. On return, also with an error, nobody reads or writes `memory` any more.
  Status broadcast(std::string_view tag, const std::vector<int>& ranks, int source,
                   std::span<std::byte> memory, Deadline deadline, AbortSignal& abort);

 private:
  ProcessGroup(std::unique_ptr<ControlClient> control, std::string hub_host);
  Result<Transport*> transport();
  Status broadcast_large(std::string_view tag, const std::vector<int>& from_source,
                         std::span<std::byte> memory, Deadline deadline, AbortSignal& abort);
  Status read(std::span<const std::byte> descriptor, std::uint64_t region, int owner,
              std::span<std::byte> memory, Deadline deadline, AbortSignal& abort);

  const std::unique_ptr<ControlClient> control_;
  const std::string hub_host_;
  std::mutex mutex_;
  std::unique_ptr<Transport> transport_;  ///< made by the first that needs it
};

}  // namespace ckpt
