#include "parameter_server/offered_copy.h"

#include <utility>

#include "base/strings.h"
#include "checkpoint/digest.h"
#include "checkpoint/split.h"

namespace ckpt {

Result<std::unique_ptr<OfferedCopy>> OfferedCopy::create(const Catalog& loaded, int world_size,
                                                         const RegistrationContext& context) {
  if (context.transport == nullptr) {
    return unavailable(
        "there is no transport by which others could read this rank; see the log of "
        "its start");
  }
  std::vector<TensorInfo> all;
  for (const CatalogTensor& tensor : loaded.tensors()) all.push_back(*tensor.info);
  const auto shares = split_by_bytes(all, world_size);
  std::unique_ptr<OfferedCopy> copy(new OfferedCopy(context));
  std::vector<TensorInfo> mine;
  std::vector<std::uint64_t> bytes;
  for (const std::uint32_t i : shares[static_cast<std::size_t>(context.rank)]) {
    copy->digests_.push_back(loaded.tensors()[i].digest);
    bytes.push_back(all[i].bytes);
    mine.push_back(std::move(all[i]));
  }
  copy->layout_ = std::make_shared<const Layout>(Layout::make(std::move(mine)));
  for (std::size_t i = 0; i < copy->layout_->tensors.size(); ++i) {
    copy->index_.emplace(copy->layout_->tensors[i].name, i);
  }
  copy->held_.resize(copy->layout_->tensors.size());
  CKPT_ASSIGN_OR_RETURN(const PoolLayout places, lay_out_pool(bytes));
  copy->offsets_ = places.offsets;
  HostPoolOptions near_device;
  near_device.numa_node = context.device.numa_node();
  CKPT_ASSIGN_OR_RETURN(copy->pool_, HostPool::create(places.bytes, near_device));
  CKPT_ASSIGN_OR_RETURN(
      copy->published_,
      PublishedPool::publish(*copy->pool_, *context.transport, context.leases,
                             {concat("the copy of ", loaded.metas().checkpoint_name,
                                     " that was offered to other jobs"),
                              context.epoch, 0, context.reader_patience_seconds}));
  return copy;
}

Result<InstanceData> OfferedCopy::instance_data() const {
  InstanceData data = context_.place();
  data.layout_hash = layout_->hash;
  data.digest_algorithm = kDigestAlgorithm;
  data.offsets = offsets_;
  data.digests = digests_;
  CKPT_RETURN_IF_ERROR(published_->describe(data));
  return data;
}

std::int64_t OfferedCopy::wanted(const Catalog& catalog, const BucketTensor& tensor) const {
  const auto at = index_.find(catalog.tensors()[tensor.tensor].info->name);
  if (at == index_.end() || held_[at->second]) return -1;
  return static_cast<std::int64_t>(at->second);
}

Status OfferedCopy::copy(const Catalog& catalog, const Plan& plan, const Bucket& bucket,
                         const std::byte* ring, CopyStream& stream, Deadline deadline,
                         AbortSignal& abort) {
  for (const BucketTensor& tensor : plan.tensors_of(bucket)) {
    const std::int64_t i = wanted(catalog, tensor);
    const std::uint64_t bytes = catalog.tensors()[tensor.tensor].info->bytes;
    if (i < 0 || bytes == 0) continue;
    CKPT_RETURN_IF_ERROR(stream.copy(pool_->pointer(offsets_[static_cast<std::size_t>(i)]),
                                     ring + tensor.ring_offset, bytes));
  }
  CKPT_ASSIGN_OR_RETURN(const CopyStream::Ticket ticket, stream.mark());
  return stream.wait(ticket, deadline, abort);
}

void OfferedCopy::confirm(const Catalog& catalog, const Plan& plan, const Bucket& bucket) {
  for (const BucketTensor& tensor : plan.tensors_of(bucket)) {
    const std::int64_t i = wanted(catalog, tensor);
    if (i >= 0) held_[static_cast<std::size_t>(i)] = true;
  }
  while (first_missing_ < held_.size() && held_[first_missing_]) ++first_missing_;
  published_->set_filled(first_missing_ == held_.size() ? kWhollyFilled : offsets_[first_missing_]);
}

}  // namespace ckpt
