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

#include "checkpoint/catalog.h"
#include "device/device.h"
#include "memory/host_pool.h"
#include "parameter_server/published_pool.h"
#include "parameter_server/registered_checkpoint.h"
#include "plan/plan.h"
#include "plan/schedule.h"

namespace ckpt {

/// One thread at a time, but between begin() and end(): then copy() and offer() belong to one
/// thread, check() and confirm() to another.
class OfferedCopy {
 public:
  /// Room for this rank's share of `loaded` among `world_size`, which nothing has filled yet.
  /// Without a transport nobody could read it: kUnavailable.
  static Result<std::unique_ptr<OfferedCopy>> create(const Catalog& loaded, int world_size,
                                                     const RegistrationContext& context);

  const std::shared_ptr<const Layout>& layout() const { return layout_; }
  Result<InstanceData> instance_data() const;

  /// Everything is there, and was checked.
  bool whole() const { return first_unchecked_ == checked_.size(); }

  /// What readers are told: bytes from the beginning of the pool, kWhollyFilled when it is whole.
  /// Any thread.
  std::uint64_t offered() const { return published_->filled(); }

  /// An update begins. `catalog` and `plan` in what follows are its own; the chunks of a part come
  /// in order.
  void begin();
  /// Queues the copies of what of `chunk`, which lies in `ring`, belongs to the share and was not
  /// there before; how many bytes. The worker may read the ring meanwhile.
  Result<std::uint64_t> copy(const Catalog& catalog, const Plan& plan, const Chunk& chunk,
                             const std::byte* ring, CopyStream& stream);
  /// These copies are done: readers may have it. Whether it is right they find out themselves, by
  /// the digests of the first owner.
  void offer(const Catalog& catalog, const Plan& plan, const Chunk& chunk);
  /// Compares what the bucket, which was offered, has brought with its digests; kDataLoss with the
  /// tensor. As confirm(): the same thread.
  Status check(const Catalog& catalog, const Plan& plan, const Bucket& bucket) const;
  /// The bucket was offered, and has passed a check: of the worker that loaded it, of the ring that
  /// it lay in, or check(). What it brought is not copied again.
  void confirm(const Catalog& catalog, const Plan& plan, const Bucket& bucket);
  /// The update is over: whoever comes from now on is offered only what was confirmed. Readers that
  /// are there keep what they have read.
  void end();

 private:
  explicit OfferedCopy(const RegistrationContext& context) : context_(context) {}
  /// Bytes [offset, offset + bytes) of a tensor of the share.
  struct Piece {
    std::size_t tensor;
    std::uint64_t offset, bytes;
    std::uint64_t ring_offset;
  };
  std::vector<Piece> pieces(const Catalog& catalog, const Plan& plan, const Chunk& chunk) const;
  std::uint64_t bytes_of(std::size_t tensor) const { return layout_->tensors[tensor].bytes; }

  const RegistrationContext context_;
  std::shared_ptr<const Layout> layout_;
  std::vector<std::uint64_t> offsets_, digests_;
  std::unordered_map<std::string_view, std::size_t> index_;  // names are the layout's
  // Of each tensor of the share. What is copied is its beginning; what was checked, all of it.
  std::vector<std::uint64_t> copied_;
  std::vector<bool> checked_;
  std::size_t first_uncopied_ = 0, first_unchecked_ = 0;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<PublishedPool> published_;  // goes before the pool
};

}  // namespace ckpt
