#include "parameter_server/foreign_owners.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/digest.h"
#include "parameter_server/field_pool_metas.h"
#include "parameter_server/foreign_places.h"
#include "transport/lease.h"

namespace ckpt {
namespace {

/// For an owner that says nothing at all: its host is down, or the process is stopped.
constexpr std::chrono::seconds kAnswerPatience{5};

std::shared_ptr<const Layout> empty_layout() {
  return std::make_shared<const Layout>(Layout::make({}));
}

const InstanceData& instance_of(const Catalog& catalog, int rank) {
  return catalog.metas().ranks[static_cast<std::size_t>(rank)].instance;
}

/// By which its digests were made; of owners of nothing, what they say.
std::uint32_t algorithm_of(const Metas& metas) {
  const auto holder = std::ranges::find_if(metas.ranks, [](const RankMetas& rank) {
    return rank.layout != nullptr && !rank.layout->tensors.empty();
  });
  if (holder != metas.ranks.end()) return holder->instance.digest_algorithm;
  return metas.ranks.empty() ? kDigestAlgorithm : metas.ranks[0].instance.digest_algorithm;
}

void empty_rank(RankMetas& rank, const std::shared_ptr<const Layout>& nothing) {
  rank.layout = nothing;
  InstanceData& data = rank.instance;
  data.layout_hash = nothing->hash;
  data.offsets.clear();
  data.digests.clear();
  data.transport_descriptor.clear();
  data.pool_regions.clear();
}

Result<std::shared_ptr<const Catalog>> build(std::shared_ptr<const Metas> metas,
                                             const RankLabel& label = {}) {
  CKPT_ASSIGN_OR_RETURN(Catalog catalog, Catalog::build(std::move(metas), label));
  return std::make_shared<const Catalog>(std::move(catalog));
}

}  // namespace

Result<std::shared_ptr<const Catalog>> catalog_of_foreign_owners(const Metas& metas, int world_size,
                                                                 std::string_view transport_kind) {
  auto shifted = std::make_shared<Metas>();
  shifted->checkpoint_name = metas.checkpoint_name;
  const std::shared_ptr<const Layout> nothing = empty_layout();
  const std::uint32_t algorithm = algorithm_of(metas);
  for (int rank = 0; rank < world_size; ++rank) {
    RankMetas& own = shifted->ranks.emplace_back();
    empty_rank(own, nothing);
    own.instance.rank = rank;
    own.instance.digest_algorithm = algorithm;
  }
  for (const RankMetas& owner : metas.ranks) {
    shifted->ranks.push_back(owner);
    shifted->ranks.back().instance.rank += world_size;
  }
  shifted->first_ranks = metas.first_ranks;
  for (int& rank : shifted->first_ranks) rank += world_size;
  const RankLabel label = [&joined = *shifted, world_size](int rank) {
    return foreign_label(joined, rank, world_size);
  };
  CKPT_ASSIGN_OR_RETURN(auto catalog, build(shifted, label));
  for (int rank = world_size; rank < catalog->world_size(); ++rank) {
    CKPT_RETURN_IF_ERROR(check_places(catalog->metas().ranks[static_cast<std::size_t>(rank)],
                                      transport_kind, label(rank)));
  }
  return catalog;
}

Status no_transport(int rank) {
  return unavailable(concat("rank ", rank,
                            " has no transport to read from other ranks with; see the log of its "
                            "start"));
}

std::string foreign_label(const Metas& metas, int rank, int world_size) {
  const std::string& address = metas.ranks[static_cast<std::size_t>(rank)].instance.network.address;
  const std::vector<int>& parts = metas.first_ranks;
  const auto part = std::ranges::upper_bound(parts, rank);
  const int first = part == parts.begin() ? world_size : *(part - 1);
  const std::string which =
      parts.size() < 2 ? std::string() : concat("; file ", part - parts.begin());
  return concat("rank ", rank - first, address.empty() ? "" : concat(" (", address, ")"),
                " of the loaded metas", which);
}

std::vector<LostOwner> ask_owners(Transport& transport, const Catalog& catalog,
                                  std::span<const int> owners, int world_size, Deadline deadline,
                                  AbortSignal& abort) {
  std::vector<LostOwner> lost;
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<Door> doors;
  std::vector<int> asked;
  for (const int rank : owners) {
    if (catalog.tensors_of(rank).empty()) continue;
    const InstanceData& owner = instance_of(catalog, rank);
    ConnectOptions options;
    options.label = foreign_label(catalog.metas(), rank, world_size);
    if (owner.transport_descriptor.empty() || owner.door_region == 0) {
      lost.push_back({rank, unavailable(concat(options.label,
                                               " offers no way to read its memory; "
                                               "the log of its start says why"))});
      continue;
    }
    if (owner.door_region == kNoDoor) continue;
    auto peer = transport.connect(owner.transport_descriptor, std::move(options), deadline);
    if (!peer) {
      lost.push_back({rank, peer.status()});
      continue;
    }
    doors.push_back({peer->get(), owner.door_region, owner.epoch});
    peers.push_back(std::move(*peer));
    asked.push_back(rank);
  }
  const auto begin = Deadline::Clock::now();
  const auto outcomes =
      knock(transport, doors, deadline.earlier(Deadline::after(kAnswerPatience)), &abort);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i].is_ok()) lost.push_back({asked[i], outcomes[i]});
  }
  if (!lost.empty()) {
    const std::chrono::duration<double> asking = Deadline::Clock::now() - begin;
    log_info(lost.size(), " of ", owners.size(),
             " owners of other jobs cannot be read; known after ", asking.count(), " s");
  }
  return lost;
}

Result<std::shared_ptr<const Catalog>> catalog_without(const Catalog& catalog,
                                                       std::span<const LostOwner> lost) {
  std::vector<const LostOwner*> lost_at(static_cast<std::size_t>(catalog.world_size()), nullptr);
  for (const LostOwner& owner : lost) {
    if (owner.rank < 0 || owner.rank >= catalog.world_size()) {
      return protocol_error(concat("rank ", owner.rank, " is said to be lost, which nobody knows"));
    }
    lost_at[static_cast<std::size_t>(owner.rank)] = &owner;
  }
  for (const CatalogTensor& tensor : catalog.tensors()) {
    const LostOwner* cause = nullptr;
    const bool left = std::ranges::any_of(catalog.replicas(tensor), [&](const Replica& replica) {
      const LostOwner* owner = lost_at[static_cast<std::size_t>(replica.rank)];
      if (owner != nullptr && cause == nullptr) cause = owner;
      return owner == nullptr;
    });
    if (left) continue;
    return cause->why.with_context(
        concat("nobody is left to read tensor ", quoted(tensor.info->name), " from"));
  }
  auto metas = std::make_shared<Metas>(catalog.metas());
  const std::shared_ptr<const Layout> nothing = empty_layout();
  for (const LostOwner& owner : lost) {
    log_warning("reading from replicas: ", owner.why.message());
    empty_rank(metas->ranks[static_cast<std::size_t>(owner.rank)], nothing);
  }
  return build(std::move(metas));
}

}  // namespace ckpt
