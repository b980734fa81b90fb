#include "plan/ring_space.h"

#include <algorithm>
#include <utility>

namespace ckpt {

RingPlace RingSpace::place(std::uint64_t bytes) {
  std::uint64_t begin = next_;
  if (begin + bytes > ring_bytes_) {
    wrap();
    begin = 0;
  }
  // A bucket that leaves room for another one neither before nor behind itself would have to be
  // gone before the next could come.
  if (begin < bucket_bytes_ && bytes <= bucket_bytes_ &&
      begin + bytes + bucket_bytes_ > ring_bytes_ && bucket_bytes_ + bytes <= ring_bytes_) {
    begin = bucket_bytes_;
  }
  const RingPlace place{begin, claim(begin, begin + bytes)};
  next_ = begin + bytes;
  ++count_;
  return place;
}

std::int32_t RingSpace::claim(std::uint64_t begin, std::uint64_t end) {
  if (begin == end) return -1;
  std::int32_t last = -1;
  for (; first_old_ < old_.size() && old_[first_old_].begin < end; ++first_old_) {
    Segment& segment = old_[first_old_];
    if (segment.end <= begin) {
      placed_.push_back(segment);  // skipped over: it keeps its place
      continue;
    }
    last = std::max(last, segment.bucket);
    if (segment.begin < begin) placed_.push_back({segment.begin, begin, segment.bucket});
    if (segment.end > end) {
      segment.begin = end;
      break;
    }
  }
  placed_.push_back({begin, end, count_});
  return last;
}

void RingSpace::wrap() {
  placed_.insert(placed_.end(), old_.begin() + static_cast<std::ptrdiff_t>(first_old_), old_.end());
  std::swap(placed_, old_);
  placed_.clear();
  first_old_ = 0;
  next_ = 0;
}

}  // namespace ckpt
