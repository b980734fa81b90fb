#include "transport/lease.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>

#include "base/strings.h"

namespace ckpt {
namespace {

constexpr std::uint32_t kMagic = 0x454C4B43;  // "CKLE"
/// Beyond this the owner ignores new ones: readers cannot fill its memory.
constexpr std::size_t kMaxLeases = 1 << 16;

struct Layout {
  std::uint32_t magic, kind;
  std::uint64_t lease, door;
};
static_assert(sizeof(Layout) == std::tuple_size_v<LeaseSignalBytes>);

}  // namespace

LeaseSignalBytes encode_lease_signal(const LeaseSignal& signal) {
  const Layout layout{kMagic, static_cast<std::uint32_t>(signal.kind), signal.lease, signal.door};
  LeaseSignalBytes bytes;
  std::memcpy(bytes.data(), &layout, sizeof(layout));
  return bytes;
}

std::optional<LeaseSignal> decode_lease_signal(std::span<const std::byte> bytes) {
  Layout layout;
  if (bytes.size() != sizeof(layout)) return std::nullopt;
  std::memcpy(&layout, bytes.data(), sizeof(layout));
  const auto kind = static_cast<LeaseSignal::Kind>(layout.kind);
  if (layout.magic != kMagic) return std::nullopt;
  if (kind != LeaseSignal::Kind::kTake && kind != LeaseSignal::Kind::kEnd) return std::nullopt;
  return LeaseSignal{kind, layout.lease, layout.door};
}

void LeaseTable::forget_expired() {
  const auto now = Clock::now();
  std::erase_if(leases_, [&](const auto& entry) { return entry.second.end <= now; });
}

void LeaseTable::hear(const Transport::Sender& sender, std::span<const std::byte> bytes) {
  const auto signal = decode_lease_signal(bytes);
  if (!signal) return;
  const std::lock_guard lock(mutex_);
  const Key key(sender.instance, signal->lease);
  if (signal->kind == LeaseSignal::Kind::kEnd) {
    leases_.erase(key);
  } else {
    if (leases_.size() >= kMaxLeases) forget_expired();
    if (leases_.size() >= kMaxLeases && !leases_.contains(key)) return;
    leases_[key] = {signal->door, Clock::now() + time_, std::string(sender.label)};
  }
  changed_.notify_all();
}

std::size_t LeaseTable::held(std::uint64_t door) {
  const std::lock_guard lock(mutex_);
  forget_expired();
  return static_cast<std::size_t>(
      std::ranges::count_if(leases_, [&](const auto& entry) { return entry.second.door == door; }));
}

std::vector<std::string> LeaseTable::wait_until_free(std::uint64_t door, Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (true) {
    forget_expired();
    std::vector<std::string> readers;
    auto wake = deadline.when();
    for (const auto& [key, lease] : leases_) {
      if (lease.door != door) continue;
      readers.push_back(lease.reader);
      wake = std::min(wake, lease.end);
    }
    if (!readers.empty() && !deadline.expired()) {
      changed_.wait_until(lock, wake);
      continue;
    }
    std::erase_if(leases_, [&](const auto& entry) { return entry.second.door == door; });
    return readers;
  }
}

namespace {

/// One look at every door, under way.
class Knock {
 public:
  Knock(Transport& transport, std::span<const Door> doors, Deadline deadline)
      : doors_(doors), deadline_(deadline), shown_(doors.size(), 0) {
    for (std::size_t i = 0; i < doors.size(); ++i) {
      const ReadRange range{doors[i].region, 0, &shown_[i], sizeof(shown_[i])};
      reads_.push_back(transport.read(*doors[i].peer, {&range, 1}, deadline));
    }
  }

  bool answered() const {
    return std::ranges::all_of(reads_, [](const auto& read) { return read->done(); });
  }

  Deadline deadline() const { return deadline_; }

  /// Blocks until all doors have answered, or their time is over.
  std::vector<Status> outcomes(AbortSignal* abort) {
    std::vector<Status> outcomes;
    for (std::size_t i = 0; i < doors_.size(); ++i) {
      Status status = reads_[i]->wait(deadline_, abort);
      if (status.is_ok() && shown_[i] != doors_[i].epoch) {
        status = failed_precondition(concat(doors_[i].peer->label(),
                                            " has registered something else since the metas were "
                                            "made: load them anew"));
      }
      outcomes.push_back(std::move(status));
    }
    return outcomes;
  }

 private:
  const std::span<const Door> doors_;
  const Deadline deadline_;
  std::vector<std::uint64_t> shown_;
  std::vector<std::unique_ptr<Read>> reads_;  // end before what they write to
};

}  // namespace

std::vector<Status> knock(Transport& transport, std::span<const Door> doors, Deadline deadline,
                          AbortSignal* abort) {
  return Knock(transport, doors, deadline).outcomes(abort);
}

LeaseKeeper::~LeaseKeeper() {
  stop_.raise(aborted("nothing more is read"));
  if (thread_.joinable()) thread_.join();
  tell_all(LeaseSignal::Kind::kEnd);
}

std::vector<Status> LeaseKeeper::take(const std::vector<Door>& doors, Deadline deadline,
                                      AbortSignal* abort) {
  std::random_device random;
  for (const Door& door : doors) held_.push_back({door, std::uint64_t{random()} << 32 | random()});
  tell_all(LeaseSignal::Kind::kTake);
  const Deadline patience = deadline.earlier(Deadline::after(silence_));
  std::vector<Status> outcomes = knock(transport_, doors, patience, abort);
  std::vector<Door> open;
  for (std::size_t i = 0; i < doors.size(); ++i) {
    if (outcomes[i].is_ok()) open.push_back(doors[i]);
  }
  if (!open.empty()) {
    thread_ = std::thread([this, open = std::move(open)] { renew(open); });
  }
  return outcomes;
}

void LeaseKeeper::tell_all(LeaseSignal::Kind kind) {
  for (const Held& held : held_) {
    // An owner that is lost has no use for it, and the reads say that it is.
    static_cast<void>(transport_.signal(*held.door.peer,
                                        encode_lease_signal({kind, held.lease, held.door.region})));
  }
}

void LeaseKeeper::renew(std::vector<Door> doors) {
  // The owners' hub is not ours: that their doors are shown is how we hear that they live. The
  // answer may stand behind much data; the lease is renewed meanwhile.
  std::optional<Knock> asked;
  while (!doors.empty()) {
    const Deadline renewal = Deadline::after(kLeaseTime / 4);
    const auto stopped =
        wait_readable(stop_.fd(), asked ? renewal.earlier(asked->deadline()) : renewal);
    if (!stopped || *stopped) return;
    tell_all(LeaseSignal::Kind::kTake);
    // By the clock: a read that stands in a queue may not know that its time is over.
    if (asked && (asked->answered() || asked->deadline().expired())) {
      const std::vector<Status> outcomes = asked->outcomes(&stop_);
      if (stop_.raised()) return;
      std::vector<Door> left;
      for (std::size_t i = 0; i < doors.size(); ++i) {
        // A closed door is no loss: what its owner has lent it keeps for those inside.
        if (outcomes[i].is_ok() || outcomes[i].code() == StatusCode::kNotFound) {
          left.push_back(doors[i]);
        } else if (on_lost_) {
          on_lost_(doors[i], outcomes[i]);
        }
      }
      asked.reset();  // last: the read of an owner that is lost may take a while to end
      doors = std::move(left);
    }
    if (!asked && !doors.empty()) asked.emplace(transport_, doors, Deadline::after(silence_));
  }
}

}  // namespace ckpt
