#include "memory/tensor_sums.h"

#include <atomic>
#include <numeric>

#include "checkpoint/digest.h"

namespace ckpt {

TensorSums::TensorSums(std::span<const std::uint64_t> tensor_bytes)
    : bytes_(tensor_bytes.begin(), tensor_bytes.end()) {
  first_block_.reserve(bytes_.size() + 1);
  first_block_.push_back(0);
  for (const std::uint64_t bytes : bytes_) {
    first_block_.push_back(first_block_.back() + bytes / kBlockBytes + (bytes % kBlockBytes != 0));
  }
  sums_.resize(first_block_.back());
}

void TensorSums::add(std::size_t tensor, std::uint64_t offset, std::uint64_t sum) {
  const std::atomic_ref block(sums_[first_block_[tensor] + offset / kBlockBytes]);
  block.fetch_add(sum, std::memory_order_relaxed);
}

std::span<const std::uint64_t> TensorSums::blocks(std::size_t tensor) const {
  return std::span(sums_).subspan(first_block_[tensor],
                                  first_block_[tensor + 1] - first_block_[tensor]);
}

std::uint64_t TensorSums::digest(std::size_t tensor) const {
  const auto all = blocks(tensor);
  return digest_finish(std::accumulate(all.begin(), all.end(), std::uint64_t{0}), bytes_[tensor]);
}

std::vector<std::uint64_t> TensorSums::digests() const {
  std::vector<std::uint64_t> digests(tensors());
  for (std::size_t i = 0; i < digests.size(); ++i) digests[i] = digest(i);
  return digests;
}

std::optional<std::uint64_t> TensorSums::range_sum(std::size_t tensor, std::uint64_t offset,
                                                   std::uint64_t bytes) const {
  const std::uint64_t size = bytes_[tensor];
  if (offset > size || bytes > size - offset) return std::nullopt;
  const std::uint64_t end = offset + bytes;
  if (offset % kBlockBytes != 0 || (end % kBlockBytes != 0 && end != size)) return std::nullopt;
  if (bytes == 0) return 0;
  const auto run =
      blocks(tensor).subspan(offset / kBlockBytes, (bytes + kBlockBytes - 1) / kBlockBytes);
  return std::accumulate(run.begin(), run.end(), std::uint64_t{0});
}

}  // namespace ckpt
