// A rank's share of a checkpoint that its job has loaded from others, kept as updates bring it and
// offered to further jobs meanwhile (--fan-out): each new job reads the one before it, and the
// first owners give everything once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint/catalog.h"
#include "device/device.h"
#include "memory/host_pool.h"
#include "parameter_server/published_pool.h"
#include "parameter_server/registered_checkpoint.h"
#include "plan/plan.h"

namespace ckpt {

/// One thread at a time.
class OfferedCopy {
 public:
  /// Room for this rank's share of `loaded` among `world_size`, which nothing has filled yet.
  /// Without a transport nobody could read it: kUnavailable.
  static Result<std::unique_ptr<OfferedCopy>> create(const Catalog& loaded, int world_size,
                                                     const RegistrationContext& context);

  const std::shared_ptr<const Layout>& layout() const { return layout_; }
  Result<InstanceData> instance_data() const;

  /// Copies what of `bucket` belongs to the share and is not there yet. `catalog` is what the plan
  /// counts in. The worker may read the ring meanwhile.
  Status copy(const Catalog& catalog, const Plan& plan, const Bucket& bucket, const std::byte* ring,
              CopyStream& stream, Deadline deadline, AbortSignal& abort);
  /// The bucket has passed the check of the worker that loaded it: readers may have it.
  void confirm(const Catalog& catalog, const Plan& plan, const Bucket& bucket);

 private:
  explicit OfferedCopy(const RegistrationContext& context) : context_(context) {}
  /// Index into the share of a tensor of `catalog`; -1: it belongs to another rank, or is there.
  std::int64_t wanted(const Catalog& catalog, const BucketTensor& tensor) const;

  const RegistrationContext context_;
  std::shared_ptr<const Layout> layout_;
  std::vector<std::uint64_t> offsets_, digests_;
  std::unordered_map<std::string_view, std::size_t> index_;  // names are the layout's
  std::vector<bool> held_;
  std::size_t first_missing_ = 0;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<PublishedPool> published_;  // goes before the pool
};

}  // namespace ckpt
