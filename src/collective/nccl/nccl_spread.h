// `local` by NCCL, and `cross` where every owner is updated itself: what the ranks of a host, or of
// all hosts, fill into their staging goes to the rings of all recipients in group calls, one chunk
// of each rank that fills in each. Faster on the wire than copy engines, and needs no memory of
// others to be opened; but takes SMs while it works, and device memory for as long as its
// communicator lives.
//
// A group call goes out only when every chunk of it has been filled and every recipient, of
// whichever host, has ring space for it. The ranks know both from their host's board, and what
// ranks of other hosts report is published there, too (host_credits.h): no kernel spins for a rank
// that is late by more than the microseconds that the news of it takes.
//
// What comes from other hosts lies in host memory; that is pulled (collective/peer).
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "collective/host_progress.h"
#include "collective/nccl/nccl_communicator.h"
#include "collective/nccl/nccl_rounds.h"
#include "collective/peer/peer_spread.h"
#include "collective/spread.h"
#include "device/device.h"

namespace ckpt {

/// Everything a pass gives to it. The referred objects outlive it.
struct NcclContext {
  const Plan& plan;
  const Schedule& schedule;
  Progress& progress;
  const HostProgressLayout& layout;
  PullProgress& pulled;  ///< shared with the streams that are pulled
  int rank;
  std::byte* ring;
  Staging staging;                 ///< of this rank's own fill stream, if it has one
  NcclCommunicator& communicator;  ///< of all recipients that are spread to; unusable after a
                                   ///< failed run
  std::unique_ptr<CopyStream> stream;
};

class NcclSpread : public Spread {
 public:
  explicit NcclSpread(NcclContext context);

  std::string_view name() const override { return "nccl"; }
  Status run(Deadline deadline, AbortSignal& abort) override;
  std::uint64_t bytes() const override { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct InFlight {
    std::size_t round;
    CopyStream::Ticket ticket;
  };

  Status work(Deadline deadline, AbortSignal& abort);
  bool can_start(const NcclRound& round) const;
  Status wait_until_startable(const NcclRound& round, Deadline deadline, AbortSignal& abort) const;
  Status start(std::size_t round, Deadline deadline, AbortSignal& abort);
  Status wait_for(CopyStream::Ticket ticket, Deadline deadline, AbortSignal& abort);
  Status finish_oldest(Deadline deadline, AbortSignal& abort);

  NcclContext context_;
  const RingCredits space_;  // of the rings of all recipients
  const std::vector<NcclRound> rounds_;
  std::deque<InFlight> in_flight_;
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace ckpt
