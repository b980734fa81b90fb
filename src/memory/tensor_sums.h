// Digest sums of tensors, kept per block so that parts of a tensor can be checked later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ckpt {

/// For each tensor the digest sums (checkpoint/digest.h) of its blocks of 1 MiB, the last one
/// shorter. 8 bytes for each MiB of weights. Thread-safe while only add() is called, or only the
/// rest.
class TensorSums {
 public:
  static constexpr std::uint64_t kBlockBytes = 1 << 20;

  TensorSums() = default;
  /// All sums zero.
  explicit TensorSums(std::span<const std::uint64_t> tensor_bytes);

  std::size_t tensors() const { return bytes_.size(); }
  /// Adds the sum of a run that begins at `offset` of the tensor and stays in one block.
  void add(std::size_t tensor, std::uint64_t offset, std::uint64_t sum);

  std::uint64_t digest(std::size_t tensor) const;
  std::vector<std::uint64_t> digests() const;
  /// Sum of [offset, offset + bytes) with the tensor's word indices; nothing unless both ends are
  /// borders of blocks (or the tensor's end).
  std::optional<std::uint64_t> range_sum(std::size_t tensor, std::uint64_t offset,
                                         std::uint64_t bytes) const;

 private:
  std::span<const std::uint64_t> blocks(std::size_t tensor) const;

  std::vector<std::uint64_t> bytes_;
  std::vector<std::uint64_t> first_block_;  // into sums_; one more than tensors
  std::vector<std::uint64_t> sums_;
};

}  // namespace ckpt
