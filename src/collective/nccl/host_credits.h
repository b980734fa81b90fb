// What ranks that NCCL joins over several hosts must know of each other before a group call goes
// out: how much every owner has filled, and how much every worker has loaded. Inside a host the
// numbers lie on its board; to other hosts they go as signals of the transport, and are published
// on the boards there.
//
// A rank tells its numbers to one rank of each other host, which publishes them for all ranks of
// its own: of a job of H hosts, every rank sends and hears H - 1 signals for each step at most.
// Steps that follow each other faster than they can be told are told at once. Numbers only grow, so
// that a signal which is late, or comes twice, does no harm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "collective/host_progress.h"
#include "collective/progress_signal.h"
#include "transport/transport.h"

namespace ckpt {

/// Whom of the other hosts `rank` tells, ascending: one rank of each, another one for every rank of
/// its own host as far as they go round. `hosts`: the ranks that are spread to, by host, ascending.
std::vector<int> credit_listeners(const std::vector<std::vector<int>>& hosts, int rank);

/// Everything a pass gives to it. The referred objects outlive it.
struct HostCreditsContext {
  Transport& transport;
  ProgressSignals& signals;
  const Schedule& schedule;
  Progress& progress;  ///< of this host
  const HostProgressLayout& layout;
  std::uint64_t epoch;
  std::uint32_t pass;
  int rank;
};

/// One rank's share of it.
class HostCredits {
 public:
  /// `listeners`: their transport descriptors, by rank. Hears from now on: make it before the
  /// barrier that starts the pass.
  static Result<std::unique_ptr<HostCredits>> create(
      HostCreditsContext context, const std::map<int, std::vector<std::byte>>& listeners,
      Deadline deadline);
  ~HostCredits();
  HostCredits(const HostCredits&) = delete;
  HostCredits& operator=(const HostCredits&) = delete;

  /// Two lanes, each for a thread of its own: they return when the last chunk of this rank's fill
  /// stream, or the last bucket, has been told, or with the first error: abort's cause, the
  /// deadline, a listener that is lost.
  Status tell_filled(Deadline deadline, AbortSignal& abort);
  Status tell_acknowledged(Deadline deadline, AbortSignal& abort);

 private:
  explicit HostCredits(HostCreditsContext context) : context_(context) {}
  void hear(const ProgressSignal& signal);
  Status tell(ProgressSignal::Kind kind, Progress::Slot slot, std::uint64_t total,
              Deadline deadline, AbortSignal& abort);
  Status lost_listener() const;

  const HostCreditsContext context_;
  std::vector<std::unique_ptr<Peer>> listeners_;
};

}  // namespace ckpt
