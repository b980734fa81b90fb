// Leases: a reader of another job says how long it will go on reading, so that an owner does not
// free its memory in the middle of an update. They make readers finish; that nobody reads memory
// that is gone is the transport's doing (MemoryRegion::close), with or without a lease.
//
// An owner registers a *door* for what it lends: 8 bytes that hold the epoch of the registration.
// A reader sends a signal (take), then reads the door on the same connection. The owner hears both
// in that order: so a reader that has read the door holds a lease, and when the owner has closed
// the door, which it does first, all leases that will ever be are in its table. A lease ends by a
// signal, or when it has not been renewed for kLeaseTime.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "transport/transport.h"

namespace ckpt {

/// How long a lease lives without being renewed: readers renew it four times as often.
inline constexpr std::chrono::milliseconds kLeaseTime{4000};
/// How long an owner may leave its door unanswered while it is read: its process may be stopped,
/// or its host gone. As long as ranks of a job may be silent; it is asked a second after its last
/// answer, so a reader ends six seconds after the owner at the latest.
inline constexpr std::chrono::milliseconds kOwnerSilence{5'000};

struct LeaseSignal {
  enum class Kind : std::uint32_t {
    kTake = 1,  ///< or renew
    kEnd = 2,
  };
  Kind kind;
  std::uint64_t lease;  ///< a random number of the reader's
  std::uint64_t door;   ///< region at the owner
};

/// 24 bytes, little-endian: magic "CKLE", kind, lease, door.
using LeaseSignalBytes = std::array<std::byte, 24>;
LeaseSignalBytes encode_lease_signal(const LeaseSignal& signal);
std::optional<LeaseSignal> decode_lease_signal(std::span<const std::byte> bytes);

/// The owner's side: who holds a lease. All methods from any thread.
class LeaseTable {
 public:
  explicit LeaseTable(std::chrono::milliseconds time = kLeaseTime) : time_(time) {}
  /// Takes note of a signal of a lease; ignores all others.
  void hear(const Transport::Sender& sender, std::span<const std::byte> signal);
  /// Waits until nobody holds a lease on `door`, and forgets the door. The labels of those who
  /// still do at the deadline; usually none.
  std::vector<std::string> wait_until_free(std::uint64_t door, Deadline deadline);
  /// Leases on `door` now.
  std::size_t held(std::uint64_t door);

 private:
  using Clock = Deadline::Clock;
  struct Lease {
    std::uint64_t door;
    Clock::time_point end;
    std::string reader;
  };
  /// The instance of the reader's transport, and its number: nobody ends the lease of another.
  using Key = std::pair<std::string, std::uint64_t>;

  void forget_expired();

  const std::chrono::milliseconds time_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Lease> leases_;
};

/// What a reader knows of an owner's door.
struct Door {
  /// Best one of its own: signals and answers stand behind what else is read of a peer.
  Peer* peer = nullptr;
  std::uint64_t region = 0;
  std::uint64_t epoch = 0;  ///< of the owner's registration, which the door must show
};

/// Reads all doors at once; for each ok, or why there is nothing to be read behind it: the owner
/// is gone, was restarted, or has registered something else. Blocks until `deadline` at most.
std::vector<Status> knock(Transport& transport, std::span<const Door> doors, Deadline deadline,
                          AbortSignal* abort = nullptr);

/// The reader's side: leases that are renewed, on a thread of its own, until it is destroyed.
/// Transport and peers outlive it. Methods from one thread.
class LeaseKeeper {
 public:
  using OnLost = std::function<void(const Door&, const Status&)>;
  /// `on_lost` is told once of each owner that does not show its door any more, on the keeper's
  /// thread. The others go on to be asked.
  explicit LeaseKeeper(Transport& transport, OnLost on_lost = {},
                       std::chrono::milliseconds silence = kOwnerSilence)
      : transport_(transport), on_lost_(std::move(on_lost)), silence_(silence) {}
  /// Ends the leases.
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  /// Once: takes a lease at every door; what knock() says of each. Those that are not ok are not
  /// asked again.
  [[nodiscard]] std::vector<Status> take(const std::vector<Door>& doors, Deadline deadline,
                                         AbortSignal* abort = nullptr);

 private:
  struct Held {
    Door door;
    std::uint64_t lease;
  };
  void tell_all(LeaseSignal::Kind kind);
  void renew(std::vector<Door> doors);

  Transport& transport_;
  const OnLost on_lost_;
  const std::chrono::milliseconds silence_;
  std::vector<Held> held_;
  AbortSignal stop_;
  std::thread thread_;
};

}  // namespace ckpt
