// The memory of other ranks that a rank reads in a pass: pools of owners, of this job or another,
// and rings or staging of the stops before it.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collective/chain/chain_spread.h"
#include "parameter_server/owner_fill.h"
#include "parameter_server/pass_setup.h"
#include "parameter_server/planned_pass.h"
#include "parameter_server/replica_reads.h"
#include "transport/lease.h"

namespace ckpt {

/// Connections, and leases on pools of ranks that take no part in the pass (those of other jobs
/// among them), last as long as it does. One thread.
class PeerMemories {
 public:
  /// Everything that the schedule of this rank reads from or tells something. `ready[i]` is what
  /// `recipients[i]` told. Leases are held on return: an owner that should and does not answer
  /// is an error that names it, unless others hold all that it gave.
  static Result<PeerMemories> connect(const PassSetup& setup, const CachedPlan& plan,
                                      const std::vector<int>& recipients,
                                      const std::vector<PassReady>& ready);

  /// By rank; for the chain.
  std::map<int, RemoteMemory> take_pools() { return std::move(pools_); }
  std::map<int, RemoteMemory> take_rings() { return std::move(rings_); }
  /// What they are to be read with; `own` where no other will do.
  Transport& transport(Transport& own) const { return replicas_ ? *replicas_ : own; }

 private:
  Result<Peer*> connect_to(const PassSetup& setup, std::string label,
                           std::span<const std::byte> descriptor);
  Status connect_pool(const PassSetup& setup, int rank, bool takes_part, std::vector<Door>& doors);
  void read_replicas(const PassSetup& setup, const Catalog& catalog);
  Status follow_owners(const PassSetup& setup, const std::vector<Door>& doors,
                       const std::vector<int>& ranks);
  Status take_leases(const PassSetup& setup, const std::vector<Door>& doors,
                     const std::vector<int>& ranks);
  Status do_without(const PassSetup& setup, int rank, const Status& lost);
  Status connect_ring(const PassSetup& setup, int rank, const PassReady& ready,
                      const PlanOptions& sizes);

  std::vector<std::unique_ptr<Peer>> peers_;
  std::map<int, RemoteMemory> pools_, rings_;
  std::unique_ptr<ReplicaReads> replicas_;  // where pools of another job have copies
  std::unique_ptr<OwnerFill> fill_;         // ends before the peers
  std::unique_ptr<LeaseKeeper> leases_;     // the same
};

}  // namespace ckpt
