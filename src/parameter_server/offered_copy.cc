#include "parameter_server/offered_copy.h"

#include <algorithm>
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
  copy->copied_.resize(copy->layout_->tensors.size());
  copy->checked_.resize(copy->layout_->tensors.size());
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

std::vector<OfferedCopy::Piece> OfferedCopy::pieces(const Catalog& catalog, const Plan& plan,
                                                    const Chunk& chunk) const {
  const Part& part = plan.parts[chunk.part];
  const std::span<const BucketTensor> tensors = plan.tensors_of(part);
  const std::uint64_t begin = plan.places_of(part)[0].ring_offset + chunk.part_offset;
  const std::uint64_t end = begin + chunk.bytes;
  auto tensor = std::ranges::upper_bound(tensors, begin, {}, &BucketTensor::ring_offset);
  if (tensor != tensors.begin()) --tensor;
  std::vector<Piece> found;
  for (; tensor != tensors.end() && tensor->ring_offset < end; ++tensor) {
    const TensorInfo& info = *catalog.tensors()[tensor->tensor].info;
    const std::uint64_t from = std::max(begin, tensor->ring_offset);
    const std::uint64_t to = std::min(end, tensor->ring_offset + info.bytes);
    if (from >= to) continue;
    const auto mine = index_.find(info.name);
    if (mine == index_.end()) continue;
    found.push_back({mine->second, from - tensor->ring_offset, to - from, from});
  }
  return found;
}

void OfferedCopy::begin() {
  for (std::size_t i = 0; i < copied_.size(); ++i) copied_[i] = checked_[i] ? bytes_of(i) : 0;
  first_uncopied_ = first_unchecked_;
}

Result<std::uint64_t> OfferedCopy::copy(const Catalog& catalog, const Plan& plan,
                                        const Chunk& chunk, const std::byte* ring,
                                        CopyStream& stream) {
  std::uint64_t bytes = 0;
  for (const Piece& piece : pieces(catalog, plan, chunk)) {
    if (piece.offset < copied_[piece.tensor]) continue;
    CKPT_RETURN_IF_ERROR(stream.copy(pool_->pointer(offsets_[piece.tensor]) + piece.offset,
                                     ring + piece.ring_offset, piece.bytes));
    bytes += piece.bytes;
  }
  return bytes;
}

void OfferedCopy::offer(const Catalog& catalog, const Plan& plan, const Chunk& chunk) {
  for (const Piece& piece : pieces(catalog, plan, chunk)) {
    std::uint64_t& copied = copied_[piece.tensor];
    copied = std::max(copied, piece.offset + piece.bytes);
  }
  std::size_t& first = first_uncopied_;
  while (first < copied_.size() && copied_[first] == bytes_of(first)) ++first;
  if (first < copied_.size()) {
    published_->set_filled(offsets_[first] + copied_[first]);
  } else if (first > 0) {
    published_->set_filled(offsets_.back() + bytes_of(first - 1));
  }
}

Status OfferedCopy::check(const Catalog& catalog, const Plan& plan, const Bucket& bucket) const {
  for (const BucketTensor& tensor : plan.tensors_of(bucket)) {
    const TensorInfo& info = *catalog.tensors()[tensor.tensor].info;
    const auto mine = index_.find(info.name);
    if (mine == index_.end() || checked_[mine->second]) continue;
    const std::byte* const data = pool_->pointer(offsets_[mine->second]);
    if (digest({data, static_cast<std::size_t>(info.bytes)}) != digests_[mine->second]) {
      return data_loss(concat("tensor ", quoted(info.name), " of ", info.bytes,
                              " bytes, which is kept for other jobs, differs from what was "
                              "registered; the memory or the way between its owner and rank ",
                              context_.rank, " corrupts data"));
    }
  }
  return Status();
}

void OfferedCopy::confirm(const Catalog& catalog, const Plan& plan, const Bucket& bucket) {
  for (const BucketTensor& tensor : plan.tensors_of(bucket)) {
    const auto mine = index_.find(catalog.tensors()[tensor.tensor].info->name);
    if (mine != index_.end()) checked_[mine->second] = true;
  }
  while (!whole() && checked_[first_unchecked_]) ++first_unchecked_;
  if (whole()) published_->set_filled(kWhollyFilled);
}

void OfferedCopy::end() {
  if (!whole()) published_->set_filled(offsets_[first_unchecked_]);
}

}  // namespace ckpt
