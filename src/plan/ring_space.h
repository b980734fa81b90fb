// Ring space: where each bucket lies in the ring, and which bucket must have left before.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt {

struct RingPlace {
  std::uint64_t offset;
  std::int32_t reuse_after;  ///< the last earlier bucket whose space overlaps, or -1
};

/// Places buckets one behind the other, beginning anew at 0 where one does not fit. All sizes are
/// multiples of kRingAlignment. Where no bucket is larger than `bucket_bytes` and that is at most
/// half of the ring, a bucket never overlaps the one before it.
class RingSpace {
 public:
  RingSpace(std::uint64_t ring_bytes, std::uint64_t bucket_bytes)
      : ring_bytes_(ring_bytes), bucket_bytes_(bucket_bytes) {}

  /// Of the next bucket; `bytes` is at most ring_bytes. Amortized constant time.
  RingPlace place(std::uint64_t bytes);

 private:
  struct Segment {
    std::uint64_t begin, end;
    std::int32_t bucket;
  };

  std::int32_t claim(std::uint64_t begin, std::uint64_t end);
  void wrap();

  const std::uint64_t ring_bytes_;
  const std::uint64_t bucket_bytes_;
  std::uint64_t next_ = 0;  ///< end of the last bucket
  std::int32_t count_ = 0;
  std::vector<Segment> placed_;  ///< of this round, ascending
  /// Of earlier rounds and at or behind next_: ascending, without overlaps, from first_old_ on.
  std::vector<Segment> old_;
  std::size_t first_old_ = 0;
};

}  // namespace ckpt
