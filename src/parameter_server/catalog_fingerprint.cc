#include "parameter_server/catalog_fingerprint.h"

#include <xxhash.h>

#include <memory>

namespace ckpt {

std::uint64_t catalog_fingerprint(const Catalog& catalog) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (const RankMetas& rank : catalog.metas().ranks) {
    const InstanceData& data = rank.instance;
    XXH3_64bits_update(state.get(), &data.layout_hash, sizeof(data.layout_hash));
    XXH3_64bits_update(state.get(), &data.epoch, sizeof(data.epoch));
    XXH3_64bits_update(state.get(), data.offsets.data(),
                       data.offsets.size() * sizeof(std::uint64_t));
    XXH3_64bits_update(state.get(), data.digests.data(),
                       data.digests.size() * sizeof(std::uint64_t));
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace ckpt
