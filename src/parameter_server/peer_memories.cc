#include "parameter_server/peer_memories.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/strings.h"
#include "parameter_server/field_pool_metas.h"
#include "parameter_server/foreign_owners.h"

namespace ckpt {
namespace {

/// The owners of another job that hold copies of what `read` hold, and those among `read` of which
/// there is such a copy. Empty: nobody could stand in for anybody.
std::set<int> foreign_copies(const Catalog& catalog, int world_size, const std::set<int>& read) {
  std::set<int> copies;
  for (const CatalogTensor& tensor : catalog.tensors()) {
    if (tensor.replica_count < 2) continue;
    const auto replicas = catalog.replicas(tensor);
    const bool wanted = std::ranges::any_of(replicas, [&](const Replica& replica) {
      return replica.rank >= world_size && read.contains(replica.rank);
    });
    if (!wanted) continue;
    for (const Replica& replica : replicas) {
      if (replica.rank >= world_size) copies.insert(replica.rank);
    }
  }
  return copies;
}

}  // namespace

Result<Peer*> PeerMemories::connect_to(const PassSetup& setup, std::string label,
                                       std::span<const std::byte> descriptor) {
  if (descriptor.empty()) {
    return unavailable(
        concat(label, " offers no way to read its memory; the log of its start says why"));
  }
  ConnectOptions options;
  options.label = std::move(label);
  CKPT_ASSIGN_OR_RETURN(auto peer,
                        setup.transport->connect(descriptor, std::move(options), setup.deadline));
  peers_.push_back(std::move(peer));
  return peers_.back().get();
}

Status PeerMemories::connect_pool(const PassSetup& setup, int rank, bool takes_part,
                                  std::vector<Door>& doors) {
  const InstanceData& owner = setup.catalog->metas().ranks[static_cast<std::size_t>(rank)].instance;
  const bool foreign = rank >= setup.world_size;
  const std::string label = foreign ? foreign_label(setup.catalog->metas(), rank, setup.world_size)
                                    : concat("rank ", rank);
  RemoteMemory& memory = pools_[rank];
  CKPT_ASSIGN_OR_RETURN(memory.peer, connect_to(setup, label, owner.transport_descriptor));
  for (const PoolRegion& region : owner.pool_regions) {
    memory.pieces.push_back({region.pool_offset, region.bytes, region.region});
  }
  // Who takes part keeps its memory until the barrier at the end. Nobody else hears of the update.
  if (takes_part || owner.door_region == kNoDoor) return Status();
  // By a connection of its own: neither the lease nor the question stands behind what is read.
  CKPT_ASSIGN_OR_RETURN(Peer * door, connect_to(setup, label, owner.transport_descriptor));
  doors.push_back({door, owner.door_region, owner.epoch});
  return Status();
}

Status PeerMemories::connect_ring(const PassSetup& setup, int rank, const PassReady& ready,
                                  const PlanOptions& sizes) {
  RemoteMemory& memory = rings_[rank];
  CKPT_ASSIGN_OR_RETURN(memory.peer,
                        connect_to(setup, concat("rank ", rank), ready.transport_descriptor));
  const std::uint64_t staged = ready.receive_staging.bytes;
  memory.pieces.push_back({0, staged > 0 ? staged : sizes.ring_bytes, ready.ring_region});
  memory.slot_bytes = sizes.cross_chunk_bytes;
  memory.slots = staged / memory.slot_bytes;
  return Status();
}

// What an owner does not hold yet is read when it does.
Status PeerMemories::follow_owners(const PassSetup& setup, const std::vector<Door>& doors,
                                   const std::vector<int>& ranks) {
  CKPT_ASSIGN_OR_RETURN(fill_, OwnerFill::watch(*setup.transport, doors, setup.deadline,
                                                *setup.abort, [&setup](const Status& lost) {
                                                  if (!setup.abort->raised())
                                                    setup.control.abort(setup.epoch,
                                                                        lost.on_rank(setup.rank));
                                                }));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (fill_->was_whole(i)) continue;
    RemoteMemory& memory = pools_[ranks[i]];
    memory.filled = &fill_->filled();
    memory.filled_slot = static_cast<Progress::Slot>(i);
  }
  return Status();
}

void PeerMemories::read_replicas(const PassSetup& setup, const Catalog& catalog) {
  std::map<int, RemoteMemory> foreign;
  for (const auto& [rank, pool] : pools_) {
    // Who is being filled itself may not have what is wanted.
    if (rank >= setup.world_size && pool.filled == nullptr) foreign.emplace(rank, pool);
  }
  replicas_ = std::make_unique<ReplicaReads>(*setup.transport, catalog, std::move(foreign));
}

// An owner that was there when it was asked, and does not answer any more.
Status PeerMemories::do_without(const PassSetup& setup, int rank, const Status& lost) {
  const bool its_doing = !setup.abort->raised() && !setup.deadline.expired();
  if (its_doing && replicas_ && replicas_->lose(rank, lost)) return Status();
  return lost;
}

Status PeerMemories::take_leases(const PassSetup& setup, const std::vector<Door>& doors,
                                 const std::vector<int>& ranks) {
  std::vector<Door> open;
  std::map<const Peer*, int> rank_of;
  for (std::size_t i = 0; i < doors.size(); ++i) {
    if (!fill_->shown(i).is_ok()) {
      CKPT_RETURN_IF_ERROR(do_without(setup, ranks[i], fill_->shown(i)));
      continue;
    }
    open.push_back(doors[i]);
    rank_of[doors[i].peer] = ranks[i];
  }
  leases_ = std::make_unique<LeaseKeeper>(
      *setup.transport,
      [&setup, rank_of, replicas = replicas_.get()](const Door& door, const Status& lost) {
        if (setup.abort->raised()) return;
        if (replicas != nullptr && replicas->lose(rank_of.at(door.peer), lost)) return;
        setup.control.abort(setup.epoch, lost.on_rank(setup.rank));
      });
  const auto taken = leases_->take(open, setup.deadline, setup.abort.get());
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (taken[i].is_ok()) continue;
    CKPT_RETURN_IF_ERROR(do_without(setup, rank_of.at(open[i].peer), taken[i]));
  }
  return Status();
}

Result<PeerMemories> PeerMemories::connect(const PassSetup& setup, const CachedPlan& plan,
                                           const std::vector<int>& recipients,
                                           const std::vector<PassReady>& ready) {
  std::set<int> pool_ranks, ring_ranks;
  for (const IncomingChunk& incoming : plan.schedule.receive) {
    (incoming.from_pool ? pool_ranks : ring_ranks).insert(incoming.source);
    if (incoming.next_stop >= 0) ring_ranks.insert(incoming.next_stop);
  }
  PeerMemories memories;
  if (pool_ranks.empty() && ring_ranks.empty()) return memories;
  if (setup.transport == nullptr) return no_transport(setup.rank);
  const std::set<int> copies = foreign_copies(*plan.catalog, setup.world_size, pool_ranks);
  pool_ranks.insert(copies.begin(), copies.end());
  std::vector<Door> doors;
  std::vector<int> lenders;  // one for each door
  for (const int rank : pool_ranks) {
    const bool takes_part = std::ranges::binary_search(recipients, rank);
    CKPT_RETURN_IF_ERROR(memories.connect_pool(setup, rank, takes_part, doors));
    if (doors.size() > lenders.size()) lenders.push_back(rank);
  }
  for (const int rank : ring_ranks) {
    const auto at = std::ranges::lower_bound(recipients, rank) - recipients.begin();
    CKPT_RETURN_IF_ERROR(
        memories.connect_ring(setup, rank, ready[static_cast<std::size_t>(at)], plan.plan.options));
  }
  if (doors.empty()) return memories;
  CKPT_RETURN_IF_ERROR(memories.follow_owners(setup, doors, lenders));
  if (!copies.empty()) memories.read_replicas(setup, *plan.catalog);
  CKPT_RETURN_IF_ERROR(memories.take_leases(setup, doors, lenders));
  return memories;
}

}  // namespace ckpt
