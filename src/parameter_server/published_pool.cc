#include "parameter_server/published_pool.h"

#include <utility>

#include "base/log.h"
#include "base/strings.h"

namespace ckpt {

static_assert(sizeof(DoorWords) == 16 && std::atomic<std::uint64_t>::is_always_lock_free,
              "readers of other processes know it as two words");

PublishedPool::PublishedPool(Transport& transport, LeaseTable& leases, Terms terms)
    : transport_(transport), leases_(leases), terms_(std::move(terms)) {
  words_.epoch = terms_.epoch;
  words_.filled = terms_.filled;
}

Result<std::unique_ptr<PublishedPool>> PublishedPool::publish(const HostPool& pool,
                                                              Transport& transport,
                                                              LeaseTable& leases, Terms terms) {
  std::unique_ptr<PublishedPool> published(new PublishedPool(transport, leases, std::move(terms)));
  for (const PoolRun& segment : pool.segments()) {
    if (segment.bytes == 0) continue;
    CKPT_ASSIGN_OR_RETURN(auto region, transport.register_memory(segment.data, segment.bytes));
    published->places_.push_back({segment.offset, segment.bytes, region->id()});
    published->regions_.push_back(std::move(region));
  }
  if (published->regions_.empty()) return published;
  CKPT_ASSIGN_OR_RETURN(published->door_,
                        transport.register_memory(&published->words_, sizeof(published->words_)));
  return published;
}

PublishedPool::~PublishedPool() {
  if (!door_) return;
  const std::uint64_t door = door_->id();
  door_.reset();
  const auto readers =
      leases_.wait_until_free(door, Deadline::after_seconds(terms_.reader_patience_seconds));
  if (readers.empty()) return;
  log_warning(terms_.what, " goes, although other jobs still read it: ", join(readers, ", "),
              "; their updates fail");
}

Status PublishedPool::describe(InstanceData& data) const {
  if (!door_) return Status();
  CKPT_ASSIGN_OR_RETURN(data.transport_descriptor, transport_.descriptor());
  data.pool_regions = places_;
  data.door_region = door_->id();
  return Status();
}

}  // namespace ckpt
