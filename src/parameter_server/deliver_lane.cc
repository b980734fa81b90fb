#include "parameter_server/deliver_lane.h"

#include <algorithm>
#include <chrono>

#include "base/strings.h"
#include "checkpoint/digest.h"

namespace ckpt {

bool DeliverLane::has_arrived(std::uint32_t bucket) const {
  const BucketSchedule& needs = context_.schedule.buckets[bucket];
  if (!context_.schedule.pull.empty()) {
    return context_.progress.value(context_.layout.pulled_total(context_.rank)) >= needs.pulled;
  }
  return std::all_of(needs.arrived.begin(), needs.arrived.end(), [&](const StreamNeed& need) {
    return context_.progress.value(context_.layout.stream(need.rank, need.kind)) >= need.chunks;
  });
}

Status DeliverLane::wait_until_arrived(std::uint32_t bucket, Deadline deadline,
                                       AbortSignal& abort) const {
  const BucketSchedule& needs = context_.schedule.buckets[bucket];
  if (!context_.schedule.pull.empty()) {
    return context_.progress
        .wait(context_.layout.pulled_total(context_.rank), needs.pulled, deadline, abort)
        .with_context(
            concat("bucket ", bucket, " has not arrived in the ring of rank ", context_.rank));
  }
  for (const StreamNeed& need : needs.arrived) {
    CKPT_RETURN_IF_ERROR(
        context_.progress
            .wait(context_.layout.stream(need.rank, need.kind), need.chunks, deadline, abort)
            .with_context(
                concat("rank ", need.rank, " has not brought its share of bucket ", bucket)));
  }
  return Status();
}

Status DeliverLane::check_ring(std::uint32_t bucket, Deadline deadline, AbortSignal& abort) {
  const auto begin = std::chrono::steady_clock::now();
  const auto tensors = context_.plan.tensors_of(context_.plan.buckets[bucket]);
  std::vector<DigestRequest> requests;
  for (const BucketTensor& tensor : tensors) {
    requests.push_back({context_.ring + tensor.ring_offset,
                        context_.catalog.tensors()[tensor.tensor].info->bytes});
  }
  std::vector<std::uint64_t> sums(requests.size());
  CKPT_RETURN_IF_ERROR(context_.stream->digest(requests, sums.data()));
  CKPT_ASSIGN_OR_RETURN(const CopyStream::Ticket ticket, context_.stream->mark());
  CKPT_RETURN_IF_ERROR(context_.stream->wait(ticket, deadline, abort));
  for (const DigestRequest& request : requests) counts_.checked_bytes += request.bytes;
  counts_.check_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const CatalogTensor& tensor = context_.catalog.tensors()[tensors[i].tensor];
    if (digest_finish(sums[i], tensor.info->bytes) != tensor.digest) {
      return data_loss(concat("tensor ", tensor.info->name, " of ", tensor.info->bytes,
                              " bytes at ring offset ", tensors[i].ring_offset,
                              " differs from what was registered; the memory or the way "
                              "between its owner and this rank corrupts data"));
    }
  }
  return Status();
}

Status DeliverLane::announce(std::uint32_t bucket, Deadline deadline, AbortSignal& abort) {
  // A stock worker checks nothing itself.
  if (context_.verify && context_.wire == Wire::kStock) {
    CKPT_RETURN_IF_ERROR(check_ring(bucket, deadline, abort));
  }
  std::vector<RingEntry> entries;
  for (const BucketTensor& tensor : context_.plan.tensors_of(context_.plan.buckets[bucket])) {
    const CatalogTensor& known = context_.catalog.tensors()[tensor.tensor];
    entries.push_back({known.info, tensor.ring_offset, 0, known.info->bytes, known.digest});
  }
  CKPT_RETURN_IF_ERROR(context_.channel.announce(bucket, entries));
  if (bucket == 0 && context_.first_bucket) context_.first_bucket();
  return Status();
}

Status DeliverLane::take_ack(std::uint32_t bucket, Deadline deadline, AbortSignal& abort) {
  CKPT_ASSIGN_OR_RETURN(const BucketAck ack, context_.channel.wait_ack(deadline, abort));
  const Bucket& planned = context_.plan.buckets[bucket];
  if (ack.bucket != bucket || ack.tensors != planned.tensor_count) {
    return protocol_error(concat("the worker of rank ", context_.rank, " acknowledged ",
                                 ack.tensors, " tensors of bucket ", ack.bucket,
                                 "; announced were ", planned.tensor_count, " of bucket ", bucket));
  }
  if (context_.verify && context_.wire == Wire::kNative && ack.verified_tensors != ack.tensors) {
    return data_loss(concat("the worker of rank ", context_.rank, " verified ",
                            ack.verified_tensors, " of ", ack.tensors, " tensors of bucket ",
                            bucket, "; run with --no-verify to allow that"));
  }
  if (context_.offer != nullptr) {
    CKPT_RETURN_IF_ERROR(context_.offer->confirm(bucket, context_.verify, deadline, abort));
  }
  counts_.tensors += ack.tensors;
  counts_.bytes += ack.bytes;
  // For a stock worker the ring was checked, which is as far as anyone can see.
  counts_.verified_tensors += context_.wire == Wire::kNative ? ack.verified_tensors
                              : context_.verify              ? ack.tensors
                                                             : 0;
  counts_.check_seconds += ack.verify_seconds;
  if (ack.verify_seconds > 0) counts_.checked_bytes += ack.bytes;
  context_.progress.publish(context_.layout.acknowledged(context_.rank), bucket + std::uint64_t{1});
  if (context_.progress_report) context_.progress_report(counts_.bytes);
  return Status();
}

Status DeliverLane::run(Deadline deadline, AbortSignal& abort) {
  const auto count = static_cast<std::uint32_t>(context_.plan.buckets.size());
  const auto window = static_cast<std::uint32_t>(context_.channel.window());
  std::uint32_t announced = 0, acknowledged = 0;
  while (acknowledged < count) {
    const bool may_announce = announced < count && announced - acknowledged < window;
    if (may_announce && (announced == acknowledged || has_arrived(announced))) {
      CKPT_RETURN_IF_ERROR(wait_until_arrived(announced, deadline, abort));
      CKPT_RETURN_IF_ERROR(announce(announced++, deadline, abort));
    } else {
      CKPT_RETURN_IF_ERROR(take_ack(acknowledged++, deadline, abort));
    }
  }
  return Status();
}

}  // namespace ckpt
