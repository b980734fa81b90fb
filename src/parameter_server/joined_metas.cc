#include "parameter_server/joined_metas.h"

#include <map>
#include <utility>

#include "base/strings.h"
#include "parameter_server/field_pool_metas.h"
#include "transport/descriptor.h"

namespace ckpt {
namespace {

/// The random name of the owner's transport; empty where it has none of its own.
std::string instance_of(const RankMetas& rank) {
  if (rank.instance.door_region == kNoDoor) return {};
  const auto descriptor = decode_descriptor(rank.instance.transport_descriptor, {});
  return descriptor ? descriptor->instance : std::string();
}

void empty_rank(RankMetas& rank) {
  const int number = rank.instance.rank;
  const std::uint32_t algorithm = rank.instance.digest_algorithm;
  rank.layout = std::make_shared<const Layout>(Layout::make({}));
  rank.instance = {};
  rank.instance.rank = number;
  rank.instance.layout_hash = rank.layout->hash;
  rank.instance.digest_algorithm = algorithm;
}

}  // namespace

Result<Metas> join_metas(std::vector<Metas> parts) {
  if (parts.empty()) return invalid_argument("metas: an empty list");
  Metas joined;
  joined.checkpoint_name = parts[0].checkpoint_name;
  std::map<std::string, std::size_t> owners;  // by transport instance
  for (Metas& part : parts) {
    if (part.checkpoint_name != joined.checkpoint_name) {
      return invalid_argument(concat("metas of checkpoint ", quoted(part.checkpoint_name),
                                     " beside those of ", quoted(joined.checkpoint_name),
                                     ": only jobs that hold the same one can stand in for each "
                                     "other"));
    }
    joined.first_ranks.push_back(static_cast<int>(joined.ranks.size()));
    for (RankMetas& rank : part.ranks) {
      const std::string instance = instance_of(rank);
      rank.instance.rank = static_cast<int>(joined.ranks.size());
      joined.ranks.push_back(std::move(rank));
      if (instance.empty()) continue;
      const auto [at, is_new] = owners.try_emplace(instance, joined.ranks.size() - 1);
      if (is_new) continue;
      RankMetas& earlier = joined.ranks[at->second];
      RankMetas& later = joined.ranks.back();
      if (earlier.instance.epoch > later.instance.epoch) {
        empty_rank(later);
      } else {
        empty_rank(earlier);
        at->second = joined.ranks.size() - 1;
      }
    }
  }
  return joined;
}

}  // namespace ckpt
