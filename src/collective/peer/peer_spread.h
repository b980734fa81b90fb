// `local` by copy engines: every recipient pulls the chunks out of the staging of the ranks of its
// host, its own included, into its ring. No communicator, no SM, and an abort needs nobody's help.
// Works on any device whose buffers other processes can open.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>

#include "collective/host_progress.h"
#include "collective/spread.h"
#include "device/device.h"
#include "plan/schedule.h"

namespace ckpt {

/// Where the chunks of one stream of one rank lie: in staging, chunk i in slot i modulo `slots`;
/// or, with no slots, in the ring of that rank, at the place that they have in every ring.
struct Staging {
  const std::byte* data = nullptr;  ///< as this process sees it
  std::uint64_t slot_bytes = 0;
  std::uint64_t slots = 0;
};

/// A rank's stream is known by these two.
using StreamKey = std::pair<int, StreamKind>;

/// Everything a pass gives to it. The referred objects outlive it.
struct PeerContext {
  const Plan& plan;
  const Schedule& schedule;
  Progress& progress;
  const HostProgressLayout& layout;
  const RingCredits& space;  ///< of this rank's own ring
  int rank;
  std::byte* ring;
  std::map<StreamKey, Staging> stagings;  ///< of every stream in the pull list
  std::unique_ptr<CopyStream> stream;
};

class PeerSpread : public Spread {
 public:
  explicit PeerSpread(PeerContext context) : context_(std::move(context)) {}

  std::string_view name() const override { return "peer"; }
  Status run(Deadline deadline, AbortSignal& abort) override;
  std::uint64_t bytes() const override { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct InFlight {
    std::size_t pull;
    CopyStream::Ticket ticket;
  };

  bool can_start(const Pull& pull) const;
  Status wait_until_startable(const Pull& pull, Deadline deadline, AbortSignal& abort);
  Status start(std::size_t index);
  Status finish_oldest(Deadline deadline, AbortSignal& abort);

  PeerContext context_;
  std::deque<InFlight> in_flight_;
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace ckpt
