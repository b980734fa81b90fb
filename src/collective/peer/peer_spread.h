// `local` by copy engines: every recipient pulls the chunks out of the staging of the ranks of its
// host, its own included, into its ring. No communicator, no SM, and an abort needs nobody's help.
// Works on any device whose buffers other processes can open.
//
// Each stream is pulled in its own order, by a PeerSpread of its own: where one rank's share of a
// bucket is larger than another's, the other goes on with the next bucket meanwhile, as far as the
// ring has room. (In one order for all, every bucket takes as long as its largest share; two H200
// reach 80 % of their H2D rate so.) That deadlocks no more than one order would: in every stream,
// the first chunk that somebody has not pulled is filled already or can be, since those before it
// have left their slots; and of the first unfinished bucket nothing waits for ring space.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

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

/// The streams of a rank's pull list.
std::set<StreamKey> pulled_streams(const Schedule& schedule);

/// How far a rank has come in its pull list, whose streams advance each for itself. Any thread.
class PullProgress {
 public:
  PullProgress(const Schedule& schedule, Progress& progress, const HostProgressLayout& layout,
               int rank);
  /// Pull `index` of the list is done: publishes pulled_total, the pulls done without a gap.
  void complete(std::size_t index);

 private:
  Progress& progress_;
  const Progress::Slot slot_;
  std::mutex mutex_;
  std::vector<bool> done_;
  std::size_t without_gap_ = 0;
};

/// Everything a pass gives to it. The referred objects outlive it.
struct PeerContext {
  const Plan& plan;
  const Schedule& schedule;
  Progress& progress;
  const HostProgressLayout& layout;
  const RingCredits& space;  ///< of this rank's own ring
  PullProgress& pulled;      ///< shared by the streams
  int rank;
  std::byte* ring;
  StreamKey source;  ///< the stream that is pulled
  Staging staging;   ///< of it
  std::unique_ptr<CopyStream> stream;
};

class PeerSpread : public Spread {
 public:
  explicit PeerSpread(PeerContext context);

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
  std::vector<std::size_t> pulls_;  // of this stream, as indices into the pull list
  std::deque<InFlight> in_flight_;
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace ckpt
