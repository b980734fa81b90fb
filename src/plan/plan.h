// The plan of one update: the same ordered list of buckets and parts on every participant,
// computed, not sent. Pure functions of their arguments: no I/O, no clock, no device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/catalog.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// Where every tensor and part begins in a ring: multiples of this.
inline constexpr std::uint64_t kRingAlignment = 256;

/// Who fills a ring and who reads it.
enum class RingSharing {
  kPerHost,  ///< device `host`: one ring for all ranks of a host, owners write straight into it
  kPerRank,  ///< device `cuda`: a ring per recipient; parts enter through the staging of their
             ///< entry rank
};

/// What the planner knows of one rank.
struct PlanRank {
  int host = 0;            ///< dense number of its host, in order of the lowest rank on it
  bool recipient = false;  ///< its worker is updated
  double bandwidth =
      1.0;  ///< relative speed of its network device, for choosing entry ranks and sources
  /// Ranks of a host with equal numbers from 0 on share a network device; -1: it has one of its
  /// own, of which nothing more is known.
  int device = -1;
};

struct PlanOptions {
  std::uint64_t ring_bytes = 1ull << 30;    ///< R
  std::uint64_t bucket_bytes = 1ull << 29;  ///< B, at most R/2 unless `serial`
  std::uint64_t chunk_bytes = 32ull << 20;  ///< C: unit of copying on one host
  /// Unit of spreading between hosts, at most C: small, since a chain of hosts waits for one of
  /// them per hop.
  std::uint64_t cross_chunk_bytes = 1ull << 20;
  int staging_chunks = 4;  ///< S; 0: none, else at least 2. Only for kPerRank
  bool serial = false;     ///< one bucket at a time, B = R: the fallback for little memory
  RingSharing sharing = RingSharing::kPerHost;
  /// False where no transport reaches a ring (of kPerRank, in the memory of a GPU): what is
  /// received goes through staging, also for the only recipient of a host.
  bool receive_into_rings = true;
};

/// Bytes that move from the pool of the part's owner to a ring. Ranges of a part are in order of
/// both offsets; ranges that are neighbours in both are one, and so are those with a gap of the
/// same size, less than kRingAlignment, in both: a range may hold padding of the pool, which must
/// be readable, and begins and ends with a tensor.
struct SourceRange {
  std::uint64_t source_offset;  ///< pool offset at the owner
  std::uint64_t part_offset;    ///< from the beginning of the part
  std::uint64_t bytes;
};

/// Where a part lies for some recipients. A broadcast has one place: all recipients, the same ring
/// offset.
struct PartPlace {
  std::uint32_t recipients;   ///< index into Plan::recipient_sets
  std::uint64_t ring_offset;  ///< of the part's first byte
};

/// The rank through which a part enters a host. Stops are in the order in which the bytes travel:
/// each stop takes them from the one before it; the first one takes them from the owner's pool.
struct Stop {
  int host;
  int rank;
};

/// One owner's share of a bucket.
struct Part {
  int owner;
  std::uint32_t bucket;
  std::uint64_t bytes;  ///< span in the ring, padding between tensors included
  std::uint32_t first_range, range_count;
  std::uint32_t first_place, place_count;
  std::uint32_t first_stop, stop_count;  ///< every host with recipients of the part once
  std::uint32_t first_tensor, tensor_count;
};

struct BucketTensor {
  std::uint32_t tensor;       ///< index into Catalog::tensors()
  std::uint64_t ring_offset;  ///< multiple of kRingAlignment
};

/// The unit of loading. Its parts are contiguous in the plan's lists and in the ring; its tensors
/// are those of its parts.
struct Bucket {
  std::uint64_t ring_offset;
  std::uint64_t bytes;
  std::uint32_t first_part, part_count;
  std::uint32_t first_tensor, tensor_count;
  /// The ring space may be written when buckets 0..reuse_after have been acknowledged by every
  /// recipient of that ring (and read by the hosts that take them from it); -1: at once.
  std::int32_t reuse_after;
};

struct Plan {
  PlanOptions options;
  std::vector<Bucket> buckets;
  std::vector<Part> parts;
  std::vector<BucketTensor> tensors;
  std::vector<SourceRange> ranges;
  std::vector<PartPlace> places;
  std::vector<Stop> stops;
  std::vector<std::vector<int>> recipient_sets;  ///< ranks, ascending
  std::uint64_t layouts = 0;  ///< hash of the layout and epoch of every rank of the checkpoint

  std::span<const Part> parts_of(const Bucket& b) const {
    return std::span(parts).subspan(b.first_part, b.part_count);
  }
  std::span<const BucketTensor> tensors_of(const Bucket& b) const {
    return std::span(tensors).subspan(b.first_tensor, b.tensor_count);
  }
  std::span<const BucketTensor> tensors_of(const Part& p) const {
    return std::span(tensors).subspan(p.first_tensor, p.tensor_count);
  }
  std::span<const SourceRange> ranges_of(const Part& p) const {
    return std::span(ranges).subspan(p.first_range, p.range_count);
  }
  std::span<const PartPlace> places_of(const Part& p) const {
    return std::span(places).subspan(p.first_place, p.place_count);
  }
  std::span<const Stop> stops_of(const Part& p) const {
    return std::span(stops).subspan(p.first_stop, p.stop_count);
  }
  /// Over everything that decides the content; participants compare it before they trust each
  /// other.
  std::uint64_t fingerprint() const;
};

/// `ranks[i]` describes rank i; there are at least as many as the catalog has. Sizes that are no
/// multiples of kRingAlignment are rounded down. Time is linear in the tensors and the stops.
/// kInvalidArgument when nobody is a recipient, for sizes that contradict each other, and for a
/// tensor that is larger than the ring; an empty catalog gives an empty plan.
Result<Plan> make_plan(const Catalog& catalog, std::span<const PlanRank> ranks,
                       const PlanOptions& options);

/// What the caller asked for; zero means "not given".
struct MemoryRequest {
  /// An explicit --ring-size; default 1 GiB, or the whole checkpoint where that is less.
  std::uint64_t ring_bytes = 0;
  std::uint64_t bucket_bytes =
      0;  ///< --bucket-size; gives R = 2 B unless ring_bytes is set; default R / 2
  std::uint64_t chunk_bytes = 32ull << 20;  ///< at most; less where buckets are small
  std::uint64_t cross_chunk_bytes = 1ull << 20;
  int staging_chunks = 4;
  RingSharing sharing = RingSharing::kPerHost;
  bool overlap = true;  ///< false: one bucket at a time, in a ring of one bucket
};
/// Sizes for the memory that is there (`available_bytes`: the smallest over all participants,
/// PS_MEM_FRACTION applied), all of them multiples of kRingAlignment. R grows to the largest
/// tensor; then the fallbacks: smaller R, but not below two chunks; then no staging and one bucket
/// at a time; then kResourceExhausted that names the largest tensor, its size and the memory.
/// Staging (staging_chunks x chunk_bytes, at least two chunks) counts and is given only with
/// kPerRank.
Result<PlanOptions> fit_memory(const Catalog& catalog, const MemoryRequest& request,
                               std::uint64_t available_bytes);

}  // namespace ckpt
