#include "plan/hash.h"
#include "plan/plan.h"

namespace ckpt {
namespace {

constexpr std::uint64_t pair_of(std::uint32_t high, std::uint32_t low) {
  return std::uint64_t{high} << 32 | low;
}

void add(Hash64& hash, const PlanOptions& options) {
  hash.add(options.ring_bytes);
  hash.add(options.bucket_bytes);
  hash.add(options.chunk_bytes);
  hash.add(options.cross_chunk_bytes);
  hash.add(static_cast<std::uint64_t>(options.staging_chunks));
  hash.add(pair_of(options.serial, static_cast<std::uint32_t>(options.sharing)));
}

void add(Hash64& hash, const Bucket& bucket) {
  hash.add(bucket.ring_offset);
  hash.add(bucket.bytes);
  hash.add(pair_of(bucket.first_part, bucket.part_count));
  hash.add(pair_of(bucket.first_tensor, bucket.tensor_count));
  hash.add(static_cast<std::uint64_t>(bucket.reuse_after));
}

void add(Hash64& hash, const Part& part) {
  hash.add(pair_of(static_cast<std::uint32_t>(part.owner), part.bucket));
  hash.add(part.bytes);
  hash.add(pair_of(part.first_range, part.range_count));
  hash.add(pair_of(part.first_place, part.place_count));
  hash.add(pair_of(part.first_stop, part.stop_count));
  hash.add(pair_of(part.first_tensor, part.tensor_count));
}

void add(Hash64& hash, const BucketTensor& tensor) {
  hash.add(tensor.tensor);
  hash.add(tensor.ring_offset);
}

void add(Hash64& hash, const SourceRange& range) {
  hash.add(range.source_offset);
  hash.add(range.part_offset);
  hash.add(range.bytes);
}

void add(Hash64& hash, const PartPlace& place) {
  hash.add(place.recipients);
  hash.add(place.ring_offset);
}

void add(Hash64& hash, const Stop& stop) {
  hash.add(pair_of(static_cast<std::uint32_t>(stop.host), static_cast<std::uint32_t>(stop.rank)));
}

void add(Hash64& hash, int rank) { hash.add(static_cast<std::uint64_t>(rank)); }

template <typename T>
void add(Hash64& hash, const std::vector<T>& list) {
  hash.add(list.size());
  for (const T& element : list) add(hash, element);
}

}  // namespace

std::uint64_t Plan::fingerprint() const {
  Hash64 hash;
  hash.add(layouts);
  add(hash, options);
  add(hash, buckets);
  add(hash, parts);
  add(hash, tensors);
  add(hash, ranges);
  add(hash, places);
  add(hash, stops);
  add(hash, recipient_sets);
  return hash.value();
}

}  // namespace ckpt
