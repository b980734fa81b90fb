#include <algorithm>
#include <cmath>
#include <functional>

#include "base/strings.h"
#include "plan/bucket_drafts.h"
#include "plan/entry_pieces.h"
#include "plan/hash.h"
#include "plan/plan.h"
#include "plan/ring_space.h"
#include "plan/routes.h"
#include "plan/sources.h"
#include "plan/weights.h"

namespace ckpt {
namespace {

Status check_options(const PlanOptions& options) {
  if (options.chunk_bytes == 0 || options.cross_chunk_bytes == 0) {
    return invalid_argument("plan: chunk sizes must be more than zero");
  }
  if (options.cross_chunk_bytes > options.chunk_bytes) {
    return invalid_argument(concat("plan: chunks of ", options.cross_chunk_bytes,
                                   " bytes between hosts are larger than those of ",
                                   options.chunk_bytes, " on a host"));
  }
  if (options.staging_chunks < 0 || options.staging_chunks == 1) {
    return invalid_argument(concat("plan: staging of ", options.staging_chunks,
                                   " chunks; it needs two at least, or none"));
  }
  if (options.bucket_bytes < kRingAlignment || options.ring_bytes < options.bucket_bytes) {
    return invalid_argument(concat("plan: a ring of ", options.ring_bytes, " bytes for buckets of ",
                                   options.bucket_bytes, ": buckets need at least ", kRingAlignment,
                                   " bytes and must fit into the ring"));
  }
  if (!options.serial && options.bucket_bytes > options.ring_bytes / 2) {
    return invalid_argument(concat("plan: buckets of ", options.bucket_bytes,
                                   " bytes are more than half of the ring of ", options.ring_bytes,
                                   ": make the ring larger, or ask for one bucket at a time"));
  }
  return Status::ok();
}

Status check_ranks(const Catalog& catalog, std::span<const PlanRank> ranks) {
  if (static_cast<std::size_t>(catalog.world_size()) > ranks.size()) {
    return invalid_argument(concat("plan: checkpoint ", quoted(catalog.metas().checkpoint_name),
                                   " has tensors of ", catalog.world_size(), " ranks, only ",
                                   ranks.size(), " are described"));
  }
  bool any_recipient = false;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const PlanRank& r = ranks[rank];
    any_recipient |= r.recipient;
    if (r.host < 0 || static_cast<std::size_t>(r.host) >= ranks.size()) {
      return invalid_argument(concat("plan: rank ", rank, " is on host ", r.host,
                                     "; hosts are numbered from 0, at most one for each rank"));
    }
    if (!(r.bandwidth > 0) || !std::isfinite(r.bandwidth)) {
      return invalid_argument(concat("plan: rank ", rank, " has a network device of bandwidth ",
                                     r.bandwidth, "; it must be more than zero"));
    }
  }
  if (!any_recipient) return invalid_argument("plan: no rank is a recipient of this update");
  return Status::ok();
}

Status check_tensor_sizes(const Catalog& catalog, std::uint64_t ring_bytes) {
  for (const CatalogTensor& tensor : catalog.tensors()) {
    if (tensor.info->bytes > ring_bytes) {
      return invalid_argument(concat("plan: tensor ", quoted(tensor.info->name), " of rank ",
                                     catalog.replicas(tensor)[0].rank, " has ", tensor.info->bytes,
                                     " bytes, the ring only ", ring_bytes,
                                     ": make the ring as large as the tensor"));
    }
  }
  return Status::ok();
}

/// Turns drafts into the plan's lists.
class PlanWriter {
 public:
  PlanWriter(const SourceQueues& queues, std::span<const PlanRank> ranks, Plan& plan)
      : queues_(queues),
        plan_(plan),
        routes_(ranks),
        space_(plan.options.ring_bytes, plan.options.bucket_bytes) {}

  /// The lists are large: growing them step by step would cost as much as filling them.
  void reserve(std::size_t parts) {
    plan_.parts.reserve(parts);
    plan_.places.reserve(parts);
    plan_.ranges.reserve(parts);
    plan_.stops.reserve(parts * routes_.host_count());
    plan_.tensors.reserve(queues_.tensors.size());
  }

  void add_bucket(std::span<const PartDraft> drafts) {
    Bucket bucket{};
    std::uint64_t space = 0;
    for (const PartDraft& draft : drafts) space += draft.bytes;
    const auto number = static_cast<std::int32_t>(plan_.buckets.size());
    const RingPlace place = plan_.options.serial ? RingPlace{0, number - 1} : space_.place(space);
    bucket.ring_offset = place.offset;
    bucket.reuse_after = place.reuse_after;
    bucket.first_part = size32(plan_.parts);
    bucket.first_tensor = size32(plan_.tensors);
    std::uint64_t offset = 0;
    for (const PartDraft& draft : drafts) {
      const Part& part = add_part(draft, static_cast<std::uint32_t>(number), place.offset + offset);
      bucket.bytes = offset + part.bytes;
      offset += draft.bytes;
    }
    bucket.part_count = size32(plan_.parts) - bucket.first_part;
    bucket.tensor_count = size32(plan_.tensors) - bucket.first_tensor;
    plan_.buckets.push_back(bucket);
  }

 private:
  template <typename T>
  static std::uint32_t size32(const std::vector<T>& list) {
    return static_cast<std::uint32_t>(list.size());
  }

  const Part& add_part(const PartDraft& draft, std::uint32_t bucket, std::uint64_t ring_offset) {
    Part part{};
    part.owner = draft.owner;
    part.bucket = bucket;
    part.first_range = size32(plan_.ranges);
    part.first_tensor = size32(plan_.tensors);
    part.tensor_count = draft.end_tensor - draft.first_tensor;
    std::uint64_t offset = 0;
    for (std::uint32_t i = draft.first_tensor; i < draft.end_tensor; ++i) {
      const QueuedTensor& tensor = queues_.tensors[i];
      plan_.tensors.push_back({tensor.tensor, ring_offset + offset});
      if (tensor.bytes == 0) continue;
      add_range(part, {tensor.pool_offset, offset, tensor.bytes});
      part.bytes = offset + tensor.bytes;
      offset += padded(tensor.bytes);
    }
    part.range_count = size32(plan_.ranges) - part.first_range;
    part.first_place = size32(plan_.places);
    part.place_count = 1;
    plan_.places.push_back({0, ring_offset});
    part.first_stop = size32(plan_.stops);
    part.stop_count = static_cast<std::uint32_t>(routes_.host_count());
    routes_.append(part.owner, part.bytes, plan_.stops);
    return plan_.parts.emplace_back(part);
  }

  /// Padding of the same size on both sides is copied along: one copy costs less than two.
  void add_range(const Part& part, const SourceRange& range) {
    if (plan_.ranges.size() > part.first_range) {
      SourceRange& last = plan_.ranges.back();
      const std::uint64_t gap = range.part_offset - (last.part_offset + last.bytes);
      if (range.source_offset == last.source_offset + last.bytes + gap && gap < kRingAlignment) {
        last.bytes += gap + range.bytes;
        return;
      }
    }
    plan_.ranges.push_back(range);
  }

  const SourceQueues& queues_;
  Plan& plan_;
  Routes routes_;
  RingSpace space_;
};

/// Over what a plan takes for granted of the checkpoint: who has registered which tensors.
std::uint64_t hash_of_layouts(const Catalog& catalog) {
  Hash64 hash;
  for (const RankMetas& rank : catalog.metas().ranks) {
    hash.add(rank.layout->hash.high);
    hash.add(rank.layout->hash.low);
    hash.add(rank.instance.epoch);
  }
  return hash.value();
}

}  // namespace

Result<Plan> make_plan(const Catalog& catalog, std::span<const PlanRank> ranks,
                       const PlanOptions& options) {
  CKPT_RETURN_IF_ERROR(check_options(options));
  CKPT_RETURN_IF_ERROR(check_ranks(catalog, ranks));
  Plan plan;
  plan.options = options;
  plan.options.ring_bytes -= options.ring_bytes % kRingAlignment;
  plan.options.bucket_bytes -= options.bucket_bytes % kRingAlignment;
  CKPT_RETURN_IF_ERROR(check_tensor_sizes(catalog, plan.options.ring_bytes));
  plan.layouts = hash_of_layouts(catalog);
  std::vector<int>& recipients = plan.recipient_sets.emplace_back();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].recipient) recipients.push_back(static_cast<int>(rank));
  }

  const SourceQueues queues =
      queue_sources(catalog, ranks, options.chunk_bytes, plan.options.bucket_bytes);
  const std::vector<PartDraft> drafts = cut_for_entries(draft_buckets(queues, ranks, plan.options),
                                                        queues, ranks, options.cross_chunk_bytes);
  PlanWriter writer(queues, ranks, plan);
  writer.reserve(drafts.size());
  const auto same_bucket = [](const PartDraft& a, const PartDraft& b) {
    return a.bucket == b.bucket;
  };
  for (auto first = drafts.begin(), end = first; first != drafts.end(); first = end) {
    end = std::adjacent_find(first, drafts.end(), std::not_fn(same_bucket));
    if (end != drafts.end()) ++end;
    writer.add_bucket({first, end});
  }
  return plan;
}

}  // namespace ckpt
