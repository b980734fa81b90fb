#include "parameter_server/planned_pass.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "base/strings.h"
#include "parameter_server/catalog_fingerprint.h"
#include "parameter_server/foreign_owners.h"

namespace ckpt {
namespace {

/// Dense numbers for host ids, in order of the lowest rank on each. `id_of(rank)` for every rank of
/// the job.
template <typename IdOf>
std::vector<int> number_hosts(int world_size, IdOf id_of) {
  std::map<std::string, int> numbers;
  std::vector<int> hosts;
  for (int rank = 0; rank < world_size; ++rank) {
    hosts.push_back(numbers.emplace(id_of(rank), static_cast<int>(numbers.size())).first->second);
  }
  return hosts;
}

// Each rank's devices as one, known by their names; those of unknown speed count as the fastest.
std::vector<PlanRank> plan_ranks(const std::vector<int>& hosts, const std::vector<int>& recipients,
                                 const std::vector<NetworkPlace>& networks) {
  std::vector<PlanRank> ranks(hosts.size());
  std::map<std::pair<int, std::vector<std::string>>, int> devices;
  std::uint64_t fastest = 1;
  for (const NetworkPlace& network : networks) fastest = std::max(fastest, network.mbit);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    ranks[i].host = hosts[i];
    const NetworkPlace& network = networks[i];
    ranks[i].bandwidth = static_cast<double>(network.mbit > 0 ? network.mbit : fastest);
    if (network.devices.empty()) continue;
    ranks[i].device =
        devices.try_emplace({hosts[i], network.devices}, static_cast<int>(devices.size()))
            .first->second;
  }
  for (const int rank : recipients) ranks[static_cast<std::size_t>(rank)].recipient = true;
  return ranks;
}

// Without staging, what is received would have to go into the memory of a GPU.
Status check_reachable(const Plan& plan) {
  if (plan.options.receive_into_rings || plan.options.staging_chunks > 0) return Status();
  for (const Part& part : plan.parts) {
    for (const Stop& stop : plan.stops_of(part)) {
      if (stop.rank == part.owner || part.bytes == 0) continue;
      return resource_exhausted(concat(
          "rank ", stop.rank, " takes weights of rank ", part.owner,
          " over the network, which needs staging, and no memory of its GPU is left for that"));
    }
  }
  return Status();
}

// Each recipient asks its share of the owners of another job, whose hub we do not hear: who does
// not answer is left out of the plan on every rank.
Result<std::vector<LostOwner>> ask_own_share(const PassSetup& setup,
                                             const std::vector<int>& recipients) {
  std::vector<int> owners;
  const auto first = std::ranges::lower_bound(recipients, setup.rank) - recipients.begin();
  for (int rank = setup.world_size + static_cast<int>(first); rank < setup.catalog->world_size();
       rank += static_cast<int>(recipients.size())) {
    owners.push_back(rank);
  }
  if (owners.empty()) return std::vector<LostOwner>();
  if (setup.transport == nullptr) return no_transport(setup.rank);
  auto lost = ask_owners(*setup.transport, *setup.catalog, owners, setup.world_size, setup.deadline,
                         *setup.abort);
  if (setup.abort->raised()) return setup.abort->cause();
  return lost;
}

// What a failed update has left to be closed by others is waited for only where it is in the way.
// How many ranks share the device is not known yet: all recipients at most.
Result<DeviceMemory> memory_for_pass(const PassSetup& setup, std::size_t recipients) {
  CKPT_ASSIGN_OR_RETURN(const DeviceMemory memory, setup.device.memory());
  if (setup.closing.empty()) return memory;
  CKPT_ASSIGN_OR_RETURN(const PlanOptions wanted,
                        fit_memory(*setup.catalog, setup.memory, UINT64_MAX));
  const std::uint64_t each =
      wanted.ring_bytes +
      wanted.chunk_bytes * static_cast<std::uint64_t>(std::max(wanted.staging_chunks, 0));
  const double share = static_cast<double>(memory.free_bytes) * setup.memory_fraction /
                       static_cast<double>(recipients);
  if (share >= static_cast<double>(each)) return memory;
  const Status closed = setup.closing.wait(setup.deadline, *setup.abort);
  if (setup.abort->raised()) return closed;
  return setup.device.memory();
}

Result<PassOffer> own_offer(const PassSetup& setup, const std::vector<int>& recipients) {
  PassOffer mine;
  mine.host_id = setup.host_id;
  mine.network = setup.network;
  mine.device_kind = setup.device.kind();
  mine.device_uuid = setup.device.uuid();
  CKPT_ASSIGN_OR_RETURN(DeviceMemory memory, memory_for_pass(setup, recipients.size()));
  if (setup.communicator != nullptr && recipients.size() > 1) {
    // It is made when ring and staging have been allocated.
    memory.free_bytes -= std::min(memory.free_bytes, setup.communicator->bytes_to_come());
  }
  mine.available_bytes =
      static_cast<std::uint64_t>(static_cast<double>(memory.free_bytes) * setup.memory_fraction);
  mine.ring_bytes = setup.memory.ring_bytes;
  mine.bucket_bytes = setup.memory.bucket_bytes;
  mine.chunk_bytes = setup.memory.chunk_bytes;
  mine.catalog_fingerprint = catalog_fingerprint(*setup.catalog);
  mine.verify = setup.verify;
  mine.sharing = setup.memory.sharing;
  mine.instance_size = setup.instance_size;
  CKPT_ASSIGN_OR_RETURN(mine.lost_owners, ask_own_share(setup, recipients));
  mine.overlap = setup.memory.overlap;
  if (setup.kept != nullptr) {
    mine.kept = setup.kept->offer(recipients);
    mine.kept_bytes = static_cast<std::uint64_t>(
        static_cast<double>(setup.kept->bytes(recipients)) * setup.memory_fraction);
  }
  if (setup.communicator != nullptr) {
    mine.communicator = std::max(setup.communicator->id(), kNoCommunicator);
  }
  return mine;
}

// Ok when ranks that made these offers can share a pass.
Status check_agreement(const PassOffer& mine, int my_rank, const PassOffer& other, int other_rank) {
  const auto differs = [&](const char* what) {
    return invalid_argument(concat("ranks ", my_rank, " and ", other_rank, " were given different ",
                                   what, "; start all ranks with the same options"));
  };
  if (other.catalog_fingerprint != mine.catalog_fingerprint) {
    return failed_precondition(
        concat("ranks ", my_rank, " and ", other_rank,
               " have different metas; gather, or load the same ones, on all ranks again"));
  }
  if (other.device_kind != mine.device_kind) return differs("kinds of device");
  if (other.ring_bytes != mine.ring_bytes) return differs("ring sizes");
  if (other.bucket_bytes != mine.bucket_bytes) return differs("bucket sizes");
  if (other.chunk_bytes != mine.chunk_bytes) return differs("chunk sizes");
  if (other.verify != mine.verify) return differs("choices of verification");
  if (other.sharing != mine.sharing) return differs("collectives");
  if (other.instance_size != mine.instance_size) return differs("instance sizes");
  if (other.overlap != mine.overlap) return differs("choices of overlap");
  if ((other.communicator == kNotByNccl) != (mine.communicator == kNotByNccl))
    return differs("collectives");
  return Status();
}

// Collective: the offer of every recipient, mine among them.
Result<std::vector<PassOffer>> exchange_offers(const PassSetup& setup, std::uint32_t number,
                                               const std::vector<int>& recipients) {
  CKPT_ASSIGN_OR_RETURN(const PassOffer mine, own_offer(setup, recipients));
  CKPT_ASSIGN_OR_RETURN(
      const auto gathered,
      setup.control.all_gather(pass_tag("offer", number), recipients, encode(mine), setup.deadline,
                               setup.abort.get(), setup.epoch));
  std::vector<PassOffer> offers;
  for (std::size_t i = 0; i < gathered.size(); ++i) {
    CKPT_ASSIGN_OR_RETURN(PassOffer offer, decode_pass_offer(gathered[i]));
    CKPT_RETURN_IF_ERROR(check_agreement(mine, setup.rank, offer, recipients[i]));
    offers.push_back(std::move(offer));
  }
  return offers;
}

// By rank.
std::vector<LostOwner> all_lost_owners(const std::vector<PassOffer>& offers) {
  std::vector<LostOwner> lost;
  for (const PassOffer& offer : offers) {
    lost.insert(lost.end(), offer.lost_owners.begin(), offer.lost_owners.end());
  }
  std::ranges::sort(lost, {}, &LostOwner::rank);
  return lost;
}

// NCCL reaches the GPUs of all hosts alike. What a rank does not fill itself comes by the
// transport, into the memory of one host.
bool spreads_over_hosts(const PassSetup& setup, const PlannedPass& pass) {
  if (setup.communicator == nullptr || pass.local_recipients == pass.recipients) return false;
  const std::vector<RankMetas>& ranks = setup.catalog->metas().ranks;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].layout->tensors.empty() &&
        !std::ranges::binary_search(pass.recipients, static_cast<int>(rank))) {
      return false;
    }
  }
  return true;
}

// Whether those that are spread to have no communicator in common. All of them come to the same
// answer.
Result<bool> needs_communicator(const PassSetup& setup, const PlannedPass& pass) {
  if (setup.communicator == nullptr || pass.plan->schedule.pull.empty()) return false;
  std::map<std::string, int> ranks;  // by GPU
  bool same = true;
  for (const int rank : pass.spread_recipients) {
    const auto at = std::lower_bound(pass.recipients.begin(), pass.recipients.end(), rank);
    const PassOffer& offer = pass.offers[static_cast<std::size_t>(at - pass.recipients.begin())];
    const auto [other, alone] = ranks.emplace(offer.device_uuid, rank);
    if (!alone && !offer.device_uuid.empty()) {
      return unsupported(concat("ranks ", other->second, " and ", rank, " share ",
                                offer.device_uuid,
                                ", and NCCL needs a GPU for each rank; use "
                                "--collective peer"));
    }
    same = same && offer.communicator == setup.communicator->id();
  }
  return !(same && setup.communicator->connects(pass.spread_recipients));
}

// Buffers are kept where every recipient would, and none of them is read by others as a ring.
void decide_kept_buffers(PlannedPass& pass) {
  const PlanOptions& sizes = pass.plan->plan.options;
  pass.keeps_buffers = (sizes.sharing == RingSharing::kPerHost || sizes.staging_chunks > 0) &&
                       std::ranges::none_of(pass.offers, [](const PassOffer& offer) {
                         return offer.kept == KeptBuffers::kNotKept;
                       });
  pass.reuses_buffers = pass.keeps_buffers &&
                        pass.offers.front().kept != KeptBuffers::kNothingYet &&
                        std::ranges::all_of(pass.offers, [&](const PassOffer& offer) {
                          return offer.kept == pass.offers.front().kept;
                        });
}

// The memory that is free changes from update to update: the sizes decide, not the bytes.
bool fits(const CachedPlan& plan, const CachedPlan& wanted, const PlanOptions& sizes) {
  const PlanOptions& had = plan.plan.options;
  return plan.gathered == wanted.gathered && plan.lost_owners == wanted.lost_owners &&
         plan.hosts == wanted.hosts && plan.recipients == wanted.recipients &&
         plan.networks == wanted.networks && had.ring_bytes == sizes.ring_bytes &&
         had.bucket_bytes == sizes.bucket_bytes && had.chunk_bytes == sizes.chunk_bytes &&
         had.staging_chunks == sizes.staging_chunks && had.serial == sizes.serial;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

std::uint64_t least_available(const std::vector<PassOffer>& offers, RingSharing sharing) {
  // A GPU is one whichever hosts its ranks say they are on.
  const auto device = [](const PassOffer& offer) {
    return offer.device_uuid.empty() ? offer.host_id : offer.device_uuid;
  };
  struct Sharers {
    std::uint64_t count = 0;
    std::uint64_t kept_bytes = 0;
  };
  const bool per_rank = sharing == RingSharing::kPerRank;
  std::map<std::string, Sharers> sharers;
  for (const PassOffer& offer : offers) {
    Sharers& all = sharers[device(offer)];
    all.count += per_rank || all.count == 0 ? 1 : 0;
    all.kept_bytes =
        per_rank ? all.kept_bytes + offer.kept_bytes : std::max(all.kept_bytes, offer.kept_bytes);
  }
  std::uint64_t least = UINT64_MAX;
  for (const PassOffer& offer : offers) {
    const Sharers& all = sharers[device(offer)];
    least = std::min(least, (offer.available_bytes + all.kept_bytes) / all.count);
  }
  return least;
}

bool CachedPlan::crosses_hosts() const {
  return std::any_of(recipients.begin(), recipients.end(), [&](int rank) {
    return hosts[static_cast<std::size_t>(rank)] !=
           hosts[static_cast<std::size_t>(recipients.front())];
  });
}

Result<PlannedPass> plan_pass(const PassSetup& setup, std::uint32_t number,
                              std::vector<int> recipients,
                              std::shared_ptr<const CachedPlan>& cached) {
  const auto begin = std::chrono::steady_clock::now();
  PlannedPass pass;
  pass.recipients = std::move(recipients);
  CKPT_ASSIGN_OR_RETURN(pass.offers, exchange_offers(setup, number, pass.recipients));
  std::vector<int> hosts = number_hosts(
      std::max(setup.world_size, setup.catalog->world_size()), [&](int rank) -> const std::string& {
        const auto at = std::lower_bound(pass.recipients.begin(), pass.recipients.end(), rank);
        if (at != pass.recipients.end() && *at == rank)
          return pass.offers[static_cast<std::size_t>(at - pass.recipients.begin())].host_id;
        return setup.catalog->metas().ranks[static_cast<std::size_t>(rank)].instance.host_id;
      });
  for (const int rank : pass.recipients) {
    if (hosts[static_cast<std::size_t>(rank)] == hosts[static_cast<std::size_t>(setup.rank)])
      pass.local_recipients.push_back(rank);
  }
  pass.spread_recipients = pass.local_recipients;
  if (spreads_over_hosts(setup, pass)) {
    // To the plan they are one host: nothing crosses, everything is spread.
    pass.spread_recipients = pass.recipients;
    std::ranges::fill(hosts, 0);
  }
  CKPT_ASSIGN_OR_RETURN(
      PlanOptions sizes,
      fit_memory(*setup.catalog, setup.memory, least_available(pass.offers, setup.memory.sharing)));
  sizes.receive_into_rings = setup.device.kind() == DeviceKind::kHost;
  pass.stages.push_back({"agree", seconds_since(begin), 0});

  const auto plan_begin = std::chrono::steady_clock::now();
  const std::vector<LostOwner> lost = all_lost_owners(pass.offers);
  auto fresh = std::make_shared<CachedPlan>();
  fresh->gathered = fresh->catalog = setup.catalog;
  for (const LostOwner& owner : lost) fresh->lost_owners.push_back(owner.rank);
  fresh->hosts = hosts;
  fresh->recipients = pass.recipients;
  for (const RankMetas& rank : setup.catalog->metas().ranks) {
    fresh->networks.push_back(rank.instance.network);
  }
  fresh->networks.resize(hosts.size());
  for (std::size_t i = 0; i < pass.offers.size(); ++i) {
    fresh->networks[static_cast<std::size_t>(pass.recipients[i])] = pass.offers[i].network;
  }
  if (!cached || !fits(*cached, *fresh, sizes)) {
    if (!lost.empty()) {
      CKPT_ASSIGN_OR_RETURN(fresh->catalog, catalog_without(*setup.catalog, lost));
    }
    fresh->ranks = plan_ranks(hosts, pass.recipients, fresh->networks);
    CKPT_ASSIGN_OR_RETURN(fresh->plan, make_plan(*fresh->catalog, fresh->ranks, sizes));
    CKPT_RETURN_IF_ERROR(check_reachable(fresh->plan));
    fresh->schedule = make_schedule(fresh->plan, fresh->ranks, setup.rank);
    cached = std::move(fresh);
  }
  pass.plan = cached;
  CKPT_ASSIGN_OR_RETURN(pass.needs_communicator, needs_communicator(setup, pass));
  decide_kept_buffers(pass);
  pass.stages.push_back({"plan", seconds_since(plan_begin), 0});
  return pass;
}

}  // namespace ckpt
