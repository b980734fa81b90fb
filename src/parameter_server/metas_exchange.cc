#include "parameter_server/metas_exchange.h"

#include <numeric>

#include "base/strings.h"

namespace ckpt {
namespace {

std::string key_of(const LayoutHash& hash) { return concat("layout/", hash.to_string()); }

}  // namespace

Result<std::shared_ptr<const Layout>> MetasExchange::layout(ControlClient& control,
                                                            const LayoutHash& hash,
                                                            Deadline deadline, AbortSignal* abort) {
  auto& known = known_[hash];
  if (known == nullptr) {
    CKPT_ASSIGN_OR_RETURN(const auto bytes, control.get(key_of(hash), deadline, abort));
    ++traffic_.layouts_received;
    traffic_.layout_bytes += bytes.size();
    CKPT_ASSIGN_OR_RETURN(Layout decoded, decode_layout(bytes));
    if (decoded.hash != hash)
      return protocol_error(concat("the layout ", hash.to_string(), " has other bytes"));
    known = std::make_shared<const Layout>(std::move(decoded));
  }
  return known;
}

Result<std::shared_ptr<const Catalog>> MetasExchange::gather(ControlClient& control,
                                                             const std::string& checkpoint_name,
                                                             RankMetas mine, Deadline deadline,
                                                             AbortSignal* abort) {
  const LayoutHash own_hash = mine.layout->hash;
  known_[own_hash] = mine.layout;
  if (!published_.contains(own_hash)) {
    CKPT_ASSIGN_OR_RETURN(const bool there, control.contains(key_of(own_hash), deadline));
    if (!there) {
      const std::vector<std::byte> bytes = encode_layout(*mine.layout);
      CKPT_RETURN_IF_ERROR(control.put(key_of(own_hash), bytes, deadline));
      ++traffic_.layouts_sent;
      traffic_.layout_bytes += bytes.size();
    }
    published_.insert(own_hash);
  }
  std::vector<int> all(static_cast<std::size_t>(control.world_size()));
  std::iota(all.begin(), all.end(), 0);
  const std::vector<std::byte> instance_data = encode_instance_data(mine.instance);
  traffic_.instance_bytes += instance_data.size();
  CKPT_ASSIGN_OR_RETURN(
      const auto gathered,
      control.all_gather(concat("metas/", checkpoint_name), all, instance_data, deadline, abort));
  auto metas = std::make_shared<Metas>();
  metas->checkpoint_name = checkpoint_name;
  for (std::size_t rank = 0; rank < gathered.size(); ++rank) {
    traffic_.instance_bytes += gathered[rank].size();
    auto instance = decode_instance_data(gathered[rank]);
    if (!instance) return instance.status().with_context(concat("metas of rank ", rank));
    CKPT_ASSIGN_OR_RETURN(auto rank_layout,
                          layout(control, instance->layout_hash, deadline, abort));
    metas->ranks.push_back({std::move(rank_layout), std::move(*instance)});
  }
  CKPT_ASSIGN_OR_RETURN(Catalog catalog, Catalog::build(std::move(metas)));
  return std::make_shared<const Catalog>(std::move(catalog));
}

}  // namespace ckpt
