#include "worker/bucket_loader.h"

#include <chrono>
#include <cstdio>
#include <vector>

#include "base/strings.h"
#include "checkpoint/digest.h"

namespace ckpt {
namespace {

constexpr std::uint64_t kAlignment = 256;

std::string hex(std::uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof(text), "0x%016llx", static_cast<unsigned long long>(value));
  return text;
}

Status check_entry(const native::Entry& entry, std::uint64_t ring_bytes) {
  const auto refuse = [&](std::string_view why) {
    return protocol_error(concat("tensor ", quoted(entry.info.name), " at ring offset ",
                                 entry.ring_offset, " with ", entry.bytes, " bytes ", why));
  };
  if (entry.begin != 0 || entry.bytes != entry.info.bytes) {
    return unsupported(concat("tensor ", quoted(entry.info.name), " was announced in part (bytes ",
                              entry.begin, " + ", entry.bytes, " of ", entry.info.bytes,
                              "); this worker takes whole tensors"));
  }
  if (entry.ring_offset % kAlignment != 0) return refuse("is not aligned to 256 bytes");
  if (entry.ring_offset > ring_bytes || entry.bytes > ring_bytes - entry.ring_offset) {
    return refuse(concat("does not fit in the ring of ", ring_bytes));
  }
  return Status::ok();
}

/// Where the engine wants each tensor; null for those it takes in load().
Result<std::vector<RingPiece>> destinations(const native::Bucket& bucket, Loader& loader) {
  std::vector<RingPiece> pieces;
  pieces.reserve(bucket.entries.size());
  for (const native::Entry& entry : bucket.entries) {
    auto memory = loader.destination(entry.info);
    if (!memory) {
      return memory.status().with_context(concat("tensor ", quoted(entry.info.name)));
    }
    if (!memory->empty() && memory->size() != entry.bytes) {
      return invalid_argument(concat("tensor ", quoted(entry.info.name), " has ", entry.bytes,
                                     " bytes, the engine gave ", memory->size(), " for it"));
    }
    pieces.push_back({entry.ring_offset, entry.bytes, entry.begin / 8,
                      memory->empty() ? nullptr : memory->data(), 0});
  }
  return pieces;
}

Status compare(const native::Bucket& bucket, std::span<const RingPiece> pieces) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const native::Entry& entry = bucket.entries[i];
    const std::uint64_t found = digest_finish(pieces[i].sum, entry.bytes);
    if (found == entry.digest) continue;
    return data_loss(concat("tensor ", quoted(entry.info.name), " (bucket ", bucket.number,
                            ", ring offset ", entry.ring_offset, ", bytes ", entry.begin, " to ",
                            entry.begin + entry.bytes, ") has digest ", hex(found),
                            ", registered was ", hex(entry.digest),
                            "; update again, and check the memory of this host if it recurs"));
  }
  return Status::ok();
}

Status hand_over(const native::Bucket& bucket, std::span<const RingPiece> pieces,
                 const std::shared_ptr<RingMapping>& ring, Loader& loader) {
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].destination != nullptr || pieces[i].bytes == 0) continue;
    views.push_back(
        {&bucket.entries[i].info, ring->data() + pieces[i].ring_offset, ring->on_device(), ring});
  }
  return views.empty() ? Status::ok() : loader.load(views);
}

}  // namespace

Status check_bucket(const native::Bucket& bucket, std::uint64_t ring_bytes) {
  for (const native::Entry& entry : bucket.entries) {
    CKPT_RETURN_IF_ERROR(
        check_entry(entry, ring_bytes).with_context(concat("bucket ", bucket.number)));
  }
  return Status::ok();
}

Result<BucketAck> load_bucket(const native::Bucket& bucket,
                              const std::shared_ptr<RingMapping>& ring, Loader& loader, bool verify,
                              Deadline deadline) {
  const auto start = std::chrono::steady_clock::now();
  CKPT_RETURN_IF_ERROR(check_bucket(bucket, ring->size()));
  CKPT_ASSIGN_OR_RETURN(std::vector<RingPiece> pieces, destinations(bucket, loader));
  SumCheck check;
  if (verify) check = [&](std::span<const RingPiece> taken) { return compare(bucket, taken); };
  CKPT_ASSIGN_OR_RETURN(const double verify_seconds, ring->take(pieces, check, deadline));
  CKPT_RETURN_IF_ERROR(hand_over(bucket, pieces, ring, loader));

  BucketAck ack;
  ack.bucket = bucket.number;
  ack.tensors = bucket.entries.size();
  for (const native::Entry& entry : bucket.entries) ack.bytes += entry.bytes;
  ack.verified_tensors = verify ? ack.tensors : 0;
  ack.verify_seconds = verify_seconds;
  ack.load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return ack;
}

}  // namespace ckpt
