// The communicator of a rank between updates: made when it is first needed, kept as long as the
// same ranks take part, and made anew by all of them when one has lost its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collective/nccl/nccl_communicator.h"
#include "device/device.h"

namespace ckpt {

/// One thread at a time.
class KeptCommunicator {
 public:
  /// `released`: nothing is kept, it is freed after each update.
  KeptCommunicator(std::shared_ptr<const NcclApi> api, bool released)
      : api_(std::move(api)), released_(released) {}

  /// What ranks compare to know whether they have the same one: 0 without a usable one.
  std::uint64_t id() const { return usable() ? id_ : 0; }
  /// True when there is one, of exactly these ranks.
  bool connects(const std::vector<int>& members) const {
    return usable() && communicator_->members() == members;
  }

  /// What the lowest member makes and gives to the others.
  Result<std::vector<std::byte>> make_key() const;
  /// Collective over `members`: replaces the one before. `device` outlives it. Ends with a first
  /// group call, in which NCCL connects the GPUs and takes most of its memory.
  Status make(std::span<const std::byte> key, std::vector<int> members, int rank, Device& device,
              Deadline deadline, AbortSignal& abort);
  NcclCommunicator& get() { return *communicator_; }
  /// Device memory that making it took, as far as nobody else took any meanwhile.
  std::uint64_t device_bytes() const { return usable() ? device_bytes_ : 0; }
  /// What making one will take of it, about; 0 when there is one.
  std::uint64_t bytes_to_come() const { return usable() ? 0 : kExpectedBytes; }

  /// At the end of an update that has succeeded: collective, until `abort` is raised.
  void update_over(Deadline deadline, AbortSignal& abort);

 private:
  // 0.52 GiB were measured on an H200 with the 8 SMs of NcclConfig; each SM more takes 17 MiB.
  static constexpr std::uint64_t kExpectedBytes = 5ull << 27;

  Status make_here(const NcclUniqueId& id, std::vector<int> members, int rank, Device& device,
                   Deadline deadline, AbortSignal& abort);
  Status connect(Device& device, Deadline deadline, AbortSignal& abort);
  bool usable() const { return communicator_ && communicator_->usable(); }

  const std::shared_ptr<const NcclApi> api_;
  const bool released_;
  std::unique_ptr<NcclCommunicator> communicator_;
  std::uint64_t id_ = 0;
  std::uint64_t device_bytes_ = 0;
};

}  // namespace ckpt
