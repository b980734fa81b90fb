#include "transport/callback/read_permits.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "base/strings.h"

namespace ckpt {
namespace {

constexpr std::uint32_t kMagic = 0x50504B43;  // "CKPP"
constexpr std::chrono::milliseconds kRenewInterval = kPermitTime / 4;
/// Silence after which it is tried whether anybody is there at all.
constexpr std::chrono::milliseconds kSilence{250};
constexpr std::chrono::milliseconds kLook{100};

struct Layout {
  std::uint32_t magic, kind;
  std::uint64_t number, region;
};

void append_text(std::vector<std::byte>& bytes, const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  bytes.insert(bytes.end(), begin, begin + text.size());
  bytes.push_back(std::byte{0});
}

Status no_memory() { return not_found("the memory is no longer registered"); }

}  // namespace

std::vector<std::byte> encode_permit_message(const PermitMessage& message) {
  const Layout layout{kMagic, static_cast<std::uint32_t>(message.kind), message.number,
                      message.region};
  std::vector<std::byte> bytes(sizeof(layout));
  std::memcpy(bytes.data(), &layout, sizeof(layout));
  append_text(bytes, message.owner);
  append_text(bytes, message.reply_to);
  return bytes;
}

std::optional<PermitMessage> decode_permit_message(std::span<const std::byte> bytes) {
  Layout layout;
  if (bytes.size() < sizeof(layout)) return std::nullopt;
  std::memcpy(&layout, bytes.data(), sizeof(layout));
  if (layout.magic != kMagic || layout.kind < 1 || layout.kind > 6) return std::nullopt;
  const std::string_view rest(reinterpret_cast<const char*>(bytes.data()) + sizeof(layout),
                              bytes.size() - sizeof(layout));
  const std::size_t end = rest.find('\0');
  if (end == rest.npos || rest.find('\0', end + 1) != rest.size() - 1) return std::nullopt;
  return PermitMessage{static_cast<PermitMessage::Kind>(layout.kind), layout.number, layout.region,
                       std::string(rest.substr(0, end)),
                       std::string(rest.substr(end + 1, rest.size() - end - 2))};
}

ReadPermits::ReadPermits(Engine engine, std::string instance)
    : engine_(std::move(engine)), instance_(std::move(instance)) {
  std::random_device random;
  next_number_ = std::uint64_t{random()} << 32 | random();
  thread_ = std::thread([this] { run(); });
}

ReadPermits::~ReadPermits() {
  {
    const std::lock_guard lock(mutex_);
    std::vector<PermitKey> held;
    for (const auto& [key, permit] : permits_) held.push_back(key);
    for (const PermitKey& key : held) give_back_if_unused(key);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

bool ReadPermits::hear(const Transport::Sender& sender, std::span<const std::byte> bytes) {
  const auto message = decode_permit_message(bytes);
  if (!message) return false;
  const std::lock_guard lock(mutex_);
  switch (message->kind) {
    case PermitMessage::Kind::kAsk:
    case PermitMessage::Kind::kReturn:
      hear_as_owner(sender, *message);
      break;
    default:
      hear_as_reader(sender, *message);
  }
  changed_.notify_all();
  return true;
}

void ReadPermits::hear_as_owner(const Transport::Sender& sender, const PermitMessage& message) {
  const GrantKey key(sender.instance, message.number);
  if (message.kind == PermitMessage::Kind::kReturn) {
    grants_.erase(key);
    return;
  }
  forget_expired_grants();
  const auto answer = [&](PermitMessage::Kind kind) {
    post(message.reply_to, {kind, message.number, message.region, message.owner, ""});
  };
  if (message.owner != instance_) return answer(PermitMessage::Kind::kStranger);
  const auto region = regions_.find(message.region);
  const bool renewed = grants_.contains(key);
  const bool granted = region != regions_.end() &&
                       (!region->second.closing || (renewed && !region->second.closing->expired()));
  if (!granted) return answer(PermitMessage::Kind::kRefuse);
  grants_[key] = {message.region, Clock::now() + kPermitTime, message.reply_to};
  answer(PermitMessage::Kind::kGrant);
}

void ReadPermits::forget_expired_grants() {
  const auto now = Clock::now();
  std::erase_if(grants_, [&](const auto& entry) { return entry.second.end <= now; });
}

bool ReadPermits::is_granted(std::uint64_t region) const {
  return std::ranges::any_of(grants_,
                             [&](const auto& entry) { return entry.second.region == region; });
}

void ReadPermits::open(std::uint64_t region) {
  const std::lock_guard lock(mutex_);
  regions_.try_emplace(region);
}

void ReadPermits::close(std::uint64_t region, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto at = regions_.find(region);
  if (at == regions_.end()) return;
  at->second.closing = deadline;
  for (const auto& [key, grant] : grants_) {
    if (grant.region != region) continue;
    post(grant.reply_to, {PermitMessage::Kind::kRecall, key.second, region, instance_, ""});
  }
  while (true) {
    forget_expired_grants();
    if (!is_granted(region)) break;
    auto next = Clock::now() + kPermitTime;
    for (const auto& [key, grant] : grants_) next = std::min(next, grant.end);
    changed_.wait_until(lock, next);
  }
  regions_.erase(region);
}

void ReadPermits::hear_as_reader(const Transport::Sender& sender, const PermitMessage& message) {
  const auto at = permits_.find({message.owner, message.region});
  if (at == permits_.end() || at->second.number != message.number) return;
  Permit& permit = at->second;
  if (message.kind == PermitMessage::Kind::kStranger) {
    permit.refused = failed_precondition("another instance of the transport: it was restarted");
    return;
  }
  if (sender.instance != message.owner) return;
  switch (message.kind) {
    case PermitMessage::Kind::kGrant:
      if (permit.asked) permit.end = *permit.asked + kPermitTime;
      break;
    case PermitMessage::Kind::kRecall:
      permit.recalled = true;
      [[fallthrough]];
    default:
      permit.refused = no_memory();
  }
  permit.asked.reset();
  if (permit.recalled) give_back_if_unused(at->first);
}

void ReadPermits::give_back_if_unused(const PermitKey& key) {
  const auto at = permits_.find(key);
  if (at == permits_.end() || at->second.users > 0 || at->second.lingers) return;
  if (at->second.number != 0) {
    post(at->second.address,
         {PermitMessage::Kind::kReturn, at->second.number, key.second, key.first, ""});
  }
  permits_.erase(at);
}

void ReadPermits::ask(const PermitKey& key, Permit& permit) {
  permit.last_asked = Clock::now();
  if (!permit.asked) permit.asked = permit.last_asked;
  post(permit.address,
       {PermitMessage::Kind::kAsk, permit.number, key.second, key.first, engine_.address});
}

Status ReadPermits::wait_for_grant(std::unique_lock<std::mutex>& lock, const Owner& owner,
                                   std::uint64_t region, Clock::duration left, Deadline deadline,
                                   AbortSignal& abort) {
  const PermitKey key(owner.instance, region);
  auto probe_at = Clock::now() + kSilence;
  while (true) {
    Permit& permit = permits_[key];
    if (permit.number == 0) {
      permit.number = next_number_++;
      permit.address = owner.address;
    }
    if (!permit.refused.is_ok()) return permit.refused.with_context(owner.label);
    const auto now = Clock::now();
    if (permit.end > now + left) return Status();
    if (abort.raised()) return abort.cause();
    if (deadline.expired()) {
      return deadline_exceeded(concat(owner.label,
                                      " did not answer in time whether its memory may "
                                      "be read: it may be stopped"));
    }
    if (!permit.asked || permit.last_asked + kRenewInterval < now) ask(key, permit);
    if (now >= probe_at) {
      lock.unlock();
      const Status alive = engine_.alive(owner.address);
      lock.lock();
      if (alive.code() == StatusCode::kPeerLost) return alive.with_context(owner.label);
      probe_at = Clock::now() + kSilence;
      continue;
    }
    changed_.wait_until(lock, std::min({probe_at, deadline.when(), now + kRenewInterval}));
  }
}

Status ReadPermits::begin(const Owner& owner, std::uint64_t region, Deadline deadline,
                          AbortSignal& abort) {
  const int watch = abort.subscribe([this](const Status&) {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  const PermitKey key(owner.instance, region);
  const Status status = wait_for_grant(lock, owner, region, kRenewInterval, deadline, abort);
  Permit& permit = permits_[key];
  if (status.is_ok()) {
    ++permit.users;
  } else if (!permit.refused.is_ok() && permit.users == 0 && !permit.lingers) {
    permits_.erase(key);
  }
  lock.unlock();
  abort.unsubscribe(watch);
  return status;
}

Status ReadPermits::end(const Owner& owner, std::uint64_t region, bool whole, Deadline deadline,
                        AbortSignal& abort) {
  const bool lingers = !whole && engine_.abandoned(owner.address);
  std::unique_lock lock(mutex_);
  const PermitKey key(owner.instance, region);
  Status status;
  // The region was never closed before if it is not closed now: it has been what it is since it was
  // registered.
  if (whole && permits_[key].end <= Clock::now()) {
    status = wait_for_grant(lock, owner, region, Clock::duration::zero(), deadline, abort);
  }
  Permit& permit = permits_[key];
  --permit.users;
  if (lingers) {
    permit.lingers = true;
    ++permit.given_up;
  }
  if (permit.recalled) give_back_if_unused(key);
  return status;
}

void ReadPermits::post(const std::string& address, const PermitMessage& message) {
  outgoing_.push_back({address, encode_permit_message(message)});
  wake_.notify_one();
}

void ReadPermits::look_at_permits(std::unique_lock<std::mutex>& lock) {
  struct Lingering {
    PermitKey key;
    std::string address;
    std::uint64_t given_up;
  };
  std::vector<Lingering> over;
  for (const auto& [key, permit] : permits_) {
    if (permit.lingers) over.push_back({key, permit.address, permit.given_up});
  }
  lock.unlock();
  std::erase_if(over, [this](const Lingering& one) { return engine_.abandoned(one.address); });
  lock.lock();
  for (const Lingering& one : over) {
    const auto at = permits_.find(one.key);
    // A read that was given up since then is not what the answer was about.
    if (at != permits_.end() && at->second.given_up == one.given_up) at->second.lingers = false;
  }
  const auto now = Clock::now();
  std::vector<PermitKey> unused;
  for (auto& [key, permit] : permits_) {
    if (permit.users > 0 || permit.lingers) {
      if (permit.last_asked + kRenewInterval < now) ask(key, permit);
    } else if (permit.recalled || permit.last_asked + 4 * kPermitTime < now) {
      unused.push_back(key);
    }
  }
  for (const PermitKey& key : unused) give_back_if_unused(key);
}

void ReadPermits::run() {
  std::unique_lock lock(mutex_);
  auto next_look = Clock::now();
  while (true) {
    if (!outgoing_.empty()) {
      const Outgoing message = std::move(outgoing_.front());
      outgoing_.pop_front();
      lock.unlock();
      // Who cannot be told is gone; a permit that is not given back expires.
      static_cast<void>(engine_.send(message.address, message.message));
      lock.lock();
      continue;
    }
    if (stopping_) return;
    if (Clock::now() >= next_look) {
      look_at_permits(lock);
      next_look = Clock::now() + kLook;
      continue;
    }
    if (permits_.empty()) {
      wake_.wait(lock);
    } else {
      wake_.wait_until(lock, next_look);
    }
  }
}

}  // namespace ckpt
