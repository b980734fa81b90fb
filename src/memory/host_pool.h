// Host pools: the memory that holds one rank's part of a checkpoint, as one address space of pool
// offsets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint_engine/status.h"
#include "device/device.h"
#include "memory/file_mapping.h"

namespace ckpt {

/// Tensors are laid out at multiples of this, as in a ring.
inline constexpr std::uint64_t kPoolAlignment = 256;

/// Where tensors of these sizes lie in a pool that holds nothing else.
struct PoolLayout {
  std::vector<std::uint64_t> offsets;  ///< one for each tensor, in the given order
  std::uint64_t bytes = 0;             ///< that the pool needs; 0 when there is nothing to hold
};
/// One tensor behind the other at kPoolAlignment. kInvalidArgument when the sum passes 2^63.
Result<PoolLayout> lay_out_pool(std::span<const std::uint64_t> tensor_bytes);

struct HostPoolOptions {
  /// MADV_HUGEPAGE: reading into untouched memory is 1.6 times as fast with pages of 2 MiB.
  bool huge_pages = true;
  /// Prefer memory of this NUMA node (Device::numa_node); -1: of the processor that touches first.
  int numa_node = -1;
  /// How much is pinned at a time, a multiple of 2 MiB; 0: a sixteenth of the pool, but 32 to 256
  /// MiB.
  std::uint64_t piece_bytes = 0;
};

/// A run of the pool that is contiguous in memory. `offset` is the pool offset of its first byte.
struct PoolRun {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::byte* data = nullptr;
};

/// The address space of a pool consists of *segments*, each contiguous in memory: one of anonymous
/// memory, then the files that are used in place. Segments are cut into *pieces*, the units of
/// pinning. A copy to or from a device must not cross the border of two pieces: see cut().
///
/// Made and extended by one thread; afterwards pin() of different pieces and all const methods from
/// any thread. The destructor unpins and frees; nothing may still copy from the pool then.
class HostPool {
 public:
  /// A pool of `bytes` bytes of anonymous memory, untouched (reads as zeros). 0 bytes make an empty
  /// pool. kResourceExhausted names what was asked for and what the host has.
  static Result<std::unique_ptr<HostPool>> create(std::uint64_t bytes,
                                                  const HostPoolOptions& options = {});
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  /// Appends a mapped file as a segment; the result is the pool offset of its first byte.
  std::uint64_t add_file(std::unique_ptr<FileMapping> file);

  /// End of the last segment: every pool offset is below.
  std::uint64_t bytes() const;
  /// Bytes of the anonymous segment.
  std::uint64_t anonymous_bytes() const { return anonymous_bytes_; }
  /// In order of their offsets. What transports register.
  std::span<const PoolRun> segments() const { return segments_; }
  /// In order of their offsets; they tile the segments.
  std::span<const PoolRun> pieces() const { return pieces_; }
  std::span<const std::unique_ptr<FileMapping>> files() const { return files_; }

  /// Memory at the pool offset `offset`, contiguous up to the end of its segment; null for an
  /// offset in no segment.
  std::byte* pointer(std::uint64_t offset) const;
  /// The range, cut at the borders of pieces. kInvalidArgument when a byte of it lies in no piece.
  Result<std::vector<PoolRun>> cut(std::uint64_t offset, std::uint64_t bytes) const;
  /// kInvalidArgument unless the whole range lies in one segment.
  Status check_range(std::uint64_t offset, std::uint64_t bytes) const;

  /// Pins a piece for copies by `device`; pinned already is fine. Fill it first: pinning memory
  /// that was never touched is five times as slow.
  Status pin(std::size_t piece, Device& device);
  bool pinned(std::size_t piece) const { return pins_[piece] != nullptr; }
  /// Unpins every piece, several at once.
  void unpin();

 private:
  HostPool() = default;
  void append_segment(std::byte* data, std::uint64_t bytes, std::uint64_t piece_bytes);

  std::byte* mapping_ = nullptr;
  std::uint64_t mapping_bytes_ = 0;
  std::uint64_t anonymous_bytes_ = 0;
  std::vector<std::unique_ptr<FileMapping>> files_;
  std::vector<PoolRun> segments_;
  std::vector<PoolRun> pieces_;
  std::vector<std::unique_ptr<PinnedRange>> pins_;  // one for each piece; empty: not pinned
};

}  // namespace ckpt
