// Permits: how an engine that reads by address alone (Mooncake) is kept from reading memory that
// its owner takes back. A reader asks for a permit of a region before it reads, by the messages
// that go beside such an engine, renews it while it reads, and gives it back when the owner asks
// for it. An owner that closes a region grants no more, asks for those that are out, and waits
// until they are back or have expired: whoever is silent for kPermitTime is dead or stopped, and
// learns from its own clock, which started earlier, that what it reads is to be thrown away.
//
// Messages of one pair arrive in order. So what a reader has sent before it asks (a lease, see
// transport/lease.h) has been heard when it is answered.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "transport/transport.h"

namespace ckpt {

/// How long a permit lives without being renewed; renewed four times as often.
inline constexpr std::chrono::milliseconds kPermitTime{2000};

/// In the place of the instance of an owner that knows nothing of permits.
inline constexpr std::string_view kWithoutPermits = "without permits";

struct PermitMessage {
  enum class Kind : std::uint32_t {
    kAsk = 1,       ///< reader to owner; again: renew
    kGrant = 2,     ///< owner to reader
    kRefuse = 3,    ///< the region is closed, or was never there
    kStranger = 4,  ///< the owner is not the instance that was asked
    kRecall = 5,    ///< owner to reader: to be given back as soon as possible
    kReturn = 6,    ///< reader to owner
  };
  Kind kind;
  std::uint64_t number;  ///< the reader's, of the permit
  std::uint64_t region;
  std::string owner;     ///< instance of the owner that is meant
  std::string reply_to;  ///< of kAsk: the reader's address

  bool operator==(const PermitMessage&) const = default;
};

std::vector<std::byte> encode_permit_message(const PermitMessage& message);
std::optional<PermitMessage> decode_permit_message(std::span<const std::byte> bytes);

/// Both sides of one transport. All methods from any thread.
class ReadPermits {
 public:
  /// `send` hands a message to whoever listens at an address; `abandoned` is true while a read of
  /// memory at an address goes on that was given up; `alive` says whether somebody is at an
  /// address. All may block for a moment; none is called inside another method but begin(), and
  /// from a thread of its own.
  struct Engine {
    std::string address;
    std::function<Status(const std::string& address, std::span<const std::byte>)> send;
    std::function<bool(const std::string& address)> abandoned;
    std::function<Status(const std::string& address)> alive;
  };
  ReadPermits(Engine engine, std::string instance);
  /// Gives back what nobody uses.
  ~ReadPermits();
  ReadPermits(const ReadPermits&) = delete;
  ReadPermits& operator=(const ReadPermits&) = delete;

  /// False: not one of these messages.
  bool hear(const Transport::Sender& sender, std::span<const std::byte> message);

  // The owner's side.
  void open(std::uint64_t region);
  /// Returns when nobody reads the region any more. Reads under way are waited for until the
  /// deadline, and those of readers that are silent, or do not end, kPermitTime longer at most.
  void close(std::uint64_t region, Deadline deadline);

  // The reader's side.
  struct Owner {
    std::string address, instance, label;
  };
  /// Returns when this region may be read, until end(). kNotFound: it is closed;
  /// kFailedPrecondition: another instance answers; kPeerLost: nobody does.
  Status begin(const Owner& owner, std::uint64_t region, Deadline deadline, AbortSignal& abort);
  /// After a begin() that was ok. With `whole`, ok says that what was read since then is what the
  /// region held; else what begin() might say.
  Status end(const Owner& owner, std::uint64_t region, bool whole, Deadline deadline,
             AbortSignal& abort);

 private:
  using Clock = Deadline::Clock;
  /// A reader's instance, and its number.
  using GrantKey = std::pair<std::string, std::uint64_t>;
  struct Grant {
    std::uint64_t region;
    Clock::time_point end;
    std::string reply_to;
  };
  struct Region {
    std::optional<Deadline> closing;  ///< until when permits are renewed; open without
  };
  /// An owner's instance, and its region.
  using PermitKey = std::pair<std::string, std::uint64_t>;
  struct Permit {
    std::uint64_t number = 0;
    std::string address;
    int users = 0;
    bool lingers = false;        ///< a read that was given up goes on
    std::uint64_t given_up = 0;  ///< reads that did, since it was granted
    bool recalled = false;
    Status refused;
    std::optional<Clock::time_point> asked;  ///< the first time since the last answer
    Clock::time_point last_asked{}, end{};
  };
  struct Outgoing {
    std::string address;
    std::vector<std::byte> message;
  };

  void hear_as_owner(const Transport::Sender& sender, const PermitMessage& message);
  void hear_as_reader(const Transport::Sender& sender, const PermitMessage& message);
  void forget_expired_grants();
  bool is_granted(std::uint64_t region) const;
  Status wait_for_grant(std::unique_lock<std::mutex>& lock, const Owner& owner,
                        std::uint64_t region, Clock::duration left, Deadline deadline,
                        AbortSignal& abort);
  void ask(const PermitKey& key, Permit& permit);
  void give_back_if_unused(const PermitKey& key);
  void post(const std::string& address, const PermitMessage& message);
  void run();
  void look_at_permits(std::unique_lock<std::mutex>& lock);

  const Engine engine_;
  const std::string instance_;
  std::mutex mutex_;
  std::condition_variable changed_, wake_;
  // All guarded by mutex_.
  std::map<std::uint64_t, Region> regions_;
  std::map<GrantKey, Grant> grants_;
  std::map<PermitKey, Permit> permits_;
  std::uint64_t next_number_;  ///< random at the beginning
  std::deque<Outgoing> outgoing_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ckpt
