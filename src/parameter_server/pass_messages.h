// What the ranks of a pass tell each other through the hub: two gathers while they prepare
// (schema/update.fbs), and small messages about engine calls and further passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/metas.h"
#include "checkpoint_engine/status.h"
#include "device/device.h"
#include "plan/plan.h"

namespace ckpt {

/// An owner of another job that cannot be read, and why.
struct LostOwner {
  int rank = 0;  ///< in the catalog
  Status why;
};

/// In the place of a communicator's id (collective/nccl).
inline constexpr std::uint64_t kNotByNccl = 0;
inline constexpr std::uint64_t kNoCommunicator = 1;

/// First gather: what a rank has and was asked for. All sizes in bytes; 0: not given.
struct PassOffer {
  std::string host_id;
  DeviceKind device_kind = DeviceKind::kHost;
  std::string device_uuid;
  std::uint64_t available_bytes =
      0;  ///< for ring and staging of this rank (kHost: of its host), fraction applied
  std::uint64_t ring_bytes = 0;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t catalog_fingerprint = 0;
  bool verify = true;
  RingSharing sharing = RingSharing::kPerHost;
  std::uint32_t instance_size = 0;
  std::vector<LostOwner> lost_owners;  ///< of those that this rank has asked
  NetworkPlace network;                ///< without its address
  std::uint64_t communicator =
      kNotByNccl;  ///< else kNoCommunicator, or the id of the one that the rank has kept
  bool overlap = true;
  std::uint64_t kept = 0;        ///< KeptBuffers::offer
  std::uint64_t kept_bytes = 0;  ///< of that set: available as well, fraction applied
};

/// Second gather: what a rank has allocated and where it waits for its worker.
struct PassReady {
  std::uint64_t plan_fingerprint = 0;
  std::string address;
  std::string progress;          ///< name of the host's progress board; empty: none
  BufferHandle ring;             ///< bytes == 0: none (a rank that uses the ring of another)
  BufferHandle fill_staging;     ///< bytes == 0: none
  BufferHandle receive_staging;  ///< bytes == 0: none
  std::vector<std::byte> transport_descriptor;
  std::uint64_t ring_region = 0;
  std::vector<std::byte> communicator_key;  ///< from the lowest recipient of a host; else empty
  /// MemoryGuard of what others open: the fill staging, or the ring without it. Empty: they need
  /// not say that they have it open.
  std::string guard;
};

std::vector<std::byte> encode(const PassOffer& offer);
std::vector<std::byte> encode(const PassReady& ready);
Result<PassOffer> decode_pass_offer(std::span<const std::byte> bytes);
Result<PassReady> decode_pass_ready(std::span<const std::byte> bytes);

/// About engine calls and passes, sent from rank to rank with the epoch of the update.
struct PassNote {
  enum class Kind : std::uint32_t {
    kCallReturned = 1,  ///< to every recipient: the sender's engine call has returned, with success
    kReconnected =
        2,          ///< to the coordinator: a worker has connected anew to the sender after `pass`
    kNextPass = 3,  ///< from the coordinator: pass `pass` begins, with `ranks` as recipients
    kEnd = 4,       ///< from the coordinator: no further pass
  };
  Kind kind = Kind::kEnd;
  std::uint32_t pass = 0;
  std::vector<int> ranks;
};

std::vector<std::byte> encode(const PassNote& note);
std::optional<PassNote> decode_pass_note(std::span<const std::byte> bytes);

}  // namespace ckpt
