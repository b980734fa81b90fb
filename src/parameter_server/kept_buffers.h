// Ring, staging and opened memory of others, which a rank keeps from one update to the next
// (ParameterServerOptions::keep_buffers).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "device/device.h"
#include "parameter_server/closing_memory.h"
#include "parameter_server/memory_guard.h"

namespace ckpt {

/// The memory that a pass uses on one rank, and leaves to the next of the same recipients.
struct PassMemory {
  struct Opened {
    BufferHandle handle;  ///< as its owner told it
    MemoryUse use;        ///< ends behind the memory
    std::unique_ptr<DeviceBuffer> buffer;
    std::unique_ptr<PinnedRange> pinned;  ///< ends before the memory
  };

  std::optional<MemoryGuard> guard;  ///< of what others open; ends behind it
  std::unique_ptr<DeviceBuffer> ring;
  bool ring_is_own = false;  ///< else it was opened (RingSharing::kPerHost)
  std::unique_ptr<DeviceBuffer> fill_staging;
  std::unique_ptr<DeviceBuffer> receive_staging;
  /// It is memory of the device, which the transport writes to; else of the host.
  bool receives_on_device = false;
  /// Of the device, in the place of which host memory was taken: of the same guard.
  std::vector<std::unique_ptr<DeviceBuffer>> unused_staging;
  std::unique_ptr<PinnedRange> receive_pinned;
  std::vector<Opened> opened;

  /// Of ring and staging on the device, whoever made the ring.
  std::uint64_t bytes() const;
  /// Must not be freed while others have it open.
  bool has_device_staging() const {
    return fill_staging != nullptr || !unused_staging.empty() ||
           (receives_on_device && receive_staging != nullptr);
  }
};

/// At most one set. The same recipients make it, use it and close it together, so that nobody frees
/// what another has open: updates of other recipients neither use nor touch it. One thread at a
/// time.
class KeptBuffers {
 public:
  /// In the place of an id.
  static constexpr std::uint64_t kNotKept = 0;
  static constexpr std::uint64_t kNothingYet = 1;
  static constexpr std::uint64_t kFirstId = 2;

  /// What others may still have open goes to `closing`, which outlives it.
  explicit KeptBuffers(ClosingMemory& closing) : closing_(closing) {}
  ~KeptBuffers();
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

  /// What this rank says to the others of a pass: the id of the set that these recipients have left
  /// here, kNothingYet, or kNotKept while there is a set of others.
  std::uint64_t offer(const std::vector<int>& recipients) const;
  /// Of the set of these recipients; 0 without.
  std::uint64_t bytes(const std::vector<int>& recipients) const;

  /// The set, which the pass gives back by put() unless it fails.
  std::optional<PassMemory> take();
  /// `id` is the same on all `recipients`, and new.
  void put(PassMemory set, std::uint64_t id, std::vector<int> recipients, std::string checkpoint);
  /// Frees the set: at once, except what others may still have open, which goes when they have
  /// closed it, in the background.
  void release();
  /// The same, if `checkpoint` was the last that used it.
  void release_of(const std::string& checkpoint);

 private:
  struct Owner {
    std::uint64_t id = kNothingYet;
    std::vector<int> recipients;
    std::string checkpoint;
  };

  void release(Deadline deadline);

  ClosingMemory& closing_;
  std::optional<PassMemory> set_;
  Owner owner_;
};

}  // namespace ckpt
