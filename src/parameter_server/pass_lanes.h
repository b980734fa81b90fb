// What moves the bytes of a pass on one rank: the lanes that its plan wants, and what they share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/deadline.h"
#include "collective/nccl/host_credits.h"
#include "collective/spread.h"
#include "parameter_server/fill_lane.h"
#include "parameter_server/lane_threads.h"
#include "parameter_server/offer_lane.h"
#include "parameter_server/pass_buffers.h"
#include "parameter_server/pass_setup.h"
#include "parameter_server/peer_memories.h"
#include "parameter_server/planned_pass.h"

namespace ckpt {

/// A pass whose memory every recipient has made and opened. What it refers to outlives its lanes.
struct OpenedPass {
  const PassSetup& setup;
  std::uint32_t number;
  const CachedPlan& plan;
  PassBuffers& buffers;
  const std::vector<int>&recipients, &local_recipients, &spread_recipients;  // see PlannedPass
  const std::vector<PassOffer>& offers;  ///< one for each recipient
  const std::vector<PassReady>& ready;   ///< the same

  /// True when group calls of NCCL reach recipients of other hosts.
  bool spreads_over_hosts() const { return spread_recipients != local_recipients; }
  std::size_t index_of(int recipient) const;
};

/// Whether chunks of this kind go out by group calls of NCCL: what those that are spread to fill.
/// What comes from elsewhere lies in host memory, and is pulled.
bool goes_by_group_calls(const PassSetup& setup, StreamKind kind);

/// One thread makes, starts and ends them; each runs on a thread of its own.
class PassLanes {
 public:
  /// All that this rank's part of the schedule needs; leases on pools of other jobs are held on
  /// return. None runs yet.
  static Result<std::unique_ptr<PassLanes>> make(const OpenedPass& pass);
  /// Waits for the lanes: raise the abort signal first, unless join() has returned.
  ~PassLanes() { join(); }

  /// A lane that fails later aborts the update of every rank.
  Status start(Deadline deadline);
  void join() { threads_.join(); }

  /// Keeps what the worker has loaded for other jobs; null: nothing is kept.
  OfferLane* offer() { return offer_.get(); }
  /// After join(): the first failure. Adds what each moved, and how long it took.
  Status report(UpdateReport& report) const;

 private:
  explicit PassLanes(const OpenedPass& pass);
  Status make_all();
  Status make_fill();
  Status make_cross();
  Status make_credits();
  Status make_local();
  Status make_offer();
  Status start_credits(Deadline deadline);
  std::map<int, std::vector<std::byte>> credit_listeners() const;

  const OpenedPass pass_;
  std::unique_ptr<RingCredits> space_;
  std::optional<PeerMemories> peers_;
  std::unique_ptr<FillLane> fill_;
  std::unique_ptr<Spread> cross_;
  std::unique_ptr<HostCredits> credits_;  // in its place, where NCCL spreads over hosts
  std::unique_ptr<PullProgress> pulled_;
  std::vector<std::unique_ptr<Spread>> local_;  // one for each stream that is pulled
  std::unique_ptr<OfferLane> offer_;
  LaneThreads threads_;
};

}  // namespace ckpt
