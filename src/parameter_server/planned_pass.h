// What the recipients of a pass agree on before anything is allocated: that they were given the
// same options, how large ring and chunks may be, and the plan.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/strings.h"
#include "checkpoint_engine/parameter_server.h"
#include "parameter_server/pass_messages.h"
#include "parameter_server/pass_setup.h"
#include "plan/plan.h"
#include "plan/schedule.h"

namespace ckpt {

/// The plan of a pass and what it was made of, kept as long as the inputs stay the same.
struct CachedPlan {
  std::shared_ptr<const Catalog> gathered;  ///< or loaded
  std::vector<int> lost_owners;             ///< ranks of it that are not read
  std::shared_ptr<const Catalog> catalog;   ///< without them: what the plan's numbers count in
  std::vector<int> hosts;
  std::vector<int> recipients;
  std::vector<NetworkPlace> networks;  ///< of every rank
  std::vector<PlanRank> ranks;         ///< as the plan was made for them
  Plan plan;
  Schedule schedule;

  /// True when recipients of several hosts take the bytes from each other.
  bool crosses_hosts() const;
};

struct PlannedPass {
  std::vector<int> recipients;        ///< ascending
  std::vector<PassOffer> offers;      ///< one for each recipient
  std::vector<int> local_recipients;  ///< those on this rank's host
  std::shared_ptr<const CachedPlan> plan;
  /// To whom a chunk in staging goes: the recipients of this host, or with collective `nccl` those
  /// of all hosts, if every owner is one of them.
  std::vector<int> spread_recipients;
  /// Collective `nccl` with others to spread to, whose communicator must be made first.
  bool needs_communicator = false;
  bool keeps_buffers = false;   ///< all recipients leave their buffers to the next pass
  bool reuses_buffers = false;  ///< all of them have buffers that one pass has left
  std::vector<StageReport> stages;
};

/// What every recipient can give to its ring and staging: the least of all. The ranks on a device
/// share its memory; without rings of their own they have one together.
std::uint64_t least_available(const std::vector<PassOffer>& offers, RingSharing sharing);

/// What distinguishes the collective operations of one pass from those of another.
inline std::string pass_tag(const char* step, std::uint32_t pass) {
  return concat(step, "-", pass);
}

/// Collective over `recipients` (ascending, this rank among them). `cached` is used if it fits and
/// replaced if not.
Result<PlannedPass> plan_pass(const PassSetup& setup, std::uint32_t number,
                              std::vector<int> recipients,
                              std::shared_ptr<const CachedPlan>& cached);

}  // namespace ckpt
