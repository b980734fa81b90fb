#include "collective/testing/pass_lanes.h"

#include <algorithm>

#include "base/strings.h"

namespace ckpt::testing {
namespace {

/// Waits until chunk `sequence` may be written; the address of the first byte of its part.
Result<std::byte*> wait_for_room(const RankPass& rank, std::uint64_t sequence, Deadline deadline,
                                 AbortSignal& abort) {
  const Chunk& chunk = rank.schedule.fill[sequence];
  const std::uint64_t slots = rank.schedule.fill_slots;
  if (slots == 0) {
    CKPT_RETURN_IF_ERROR(rank.space.wait(chunk.bucket, deadline, abort));
    return rank.ring + rank.plan.places_of(rank.plan.parts[chunk.part])[0].ring_offset;
  }
  if (sequence >= slots) {
    for (const int puller : rank.layout.local_ranks()) {
      const auto slot = rank.layout.pulled(puller, rank.rank, StreamKind::kFill);
      CKPT_RETURN_IF_ERROR(rank.progress.wait(slot, sequence + 1 - slots, deadline, abort));
    }
  }
  return rank.fill_staging + sequence % slots * rank.plan.options.chunk_bytes - chunk.part_offset;
}

Status copy(CopyStream& stream, std::byte* to, const std::byte* from, std::uint64_t bytes,
            Deadline deadline, AbortSignal& abort) {
  CKPT_RETURN_IF_ERROR(stream.copy(to, from, bytes));
  CKPT_ASSIGN_OR_RETURN(const auto ticket, stream.mark());
  return stream.wait(ticket, deadline, abort);
}

Status wait_until_arrived(const RankPass& rank, std::uint32_t bucket, Deadline deadline,
                          AbortSignal& abort) {
  const BucketSchedule& needs = rank.schedule.buckets[bucket];
  if (!rank.schedule.pull.empty()) {
    return rank.progress.wait(rank.layout.pulled_total(rank.rank), needs.pulled, deadline, abort);
  }
  for (const StreamNeed& need : needs.arrived) {
    CKPT_RETURN_IF_ERROR(
        rank.progress.wait(rank.layout.stream(need.rank, need.kind), need.chunks, deadline, abort));
  }
  return Status();
}

}  // namespace

Status run_fill(const RankPass& rank, const HostPool& pool,
                const std::function<bool(int, std::uint64_t)>& fills, Deadline deadline,
                AbortSignal& abort) {
  CKPT_ASSIGN_OR_RETURN(auto stream, rank.device.make_stream());
  for (std::uint64_t sequence = 0; sequence < rank.schedule.fill.size(); ++sequence) {
    if (fills && !fills(rank.rank, sequence)) return Status();
    CKPT_ASSIGN_OR_RETURN(std::byte* const part, wait_for_room(rank, sequence, deadline, abort));
    for (const SourceRange& range : chunk_ranges(rank.plan, rank.schedule.fill[sequence])) {
      std::byte* to = part + range.part_offset;
      CKPT_ASSIGN_OR_RETURN(const auto runs, pool.cut(range.source_offset, range.bytes));
      for (const PoolRun& run : runs) {
        CKPT_RETURN_IF_ERROR(copy(*stream, to, run.data, run.bytes, deadline, abort));
        to += run.bytes;
      }
    }
    rank.progress.publish(rank.layout.stream(rank.rank, StreamKind::kFill), sequence + 1);
  }
  return Status();
}

Status run_reader(const RankPass& rank, const Catalog& catalog,
                  const std::vector<std::vector<std::byte>>& contents,
                  const std::function<bool(int, std::uint32_t)>& acknowledges, Deadline deadline,
                  AbortSignal& abort) {
  CKPT_ASSIGN_OR_RETURN(auto stream, rank.device.make_stream());
  for (std::uint32_t bucket = 0; bucket < rank.plan.buckets.size(); ++bucket) {
    CKPT_RETURN_IF_ERROR(wait_until_arrived(rank, bucket, deadline, abort));
    for (const BucketTensor& tensor : rank.plan.tensors_of(rank.plan.buckets[bucket])) {
      const std::vector<std::byte>& expected = contents[tensor.tensor];
      std::vector<std::byte> found(expected.size());
      CKPT_RETURN_IF_ERROR(copy(*stream, found.data(), rank.ring + tensor.ring_offset,
                                expected.size(), deadline, abort));
      const auto at = std::ranges::mismatch(found, expected).in1;
      if (at == found.end()) continue;
      return data_loss(concat("byte ", at - found.begin(), " of tensor ",
                              catalog.tensors()[tensor.tensor].info->name, " in bucket ", bucket,
                              " differs"));
    }
    if (acknowledges && !acknowledges(rank.rank, bucket)) return Status();
    rank.progress.publish(rank.layout.acknowledged(rank.rank), bucket + std::uint64_t{1});
  }
  return Status();
}

}  // namespace ckpt::testing
