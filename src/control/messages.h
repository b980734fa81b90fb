// The messages between ranks and the hub, as values. Their grammar is schema/control.fbs, their
// meaning is on docs/control-plane.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint_engine/status.h"
#include "control/payload.h"

namespace ckpt::control {

inline constexpr std::uint32_t kProtocolVersion = 1;
/// Messages with more bytes behind them travel on a connection of their own, so that beats and
/// aborts never queue behind them.
inline constexpr std::size_t kMaxControlPayload = 64 << 10;
/// More bytes are refused.
inline constexpr std::size_t kMaxPayload = std::size_t{1} << 30;

struct Join {
  std::uint32_t protocol = kProtocolVersion;
  std::string job;
  std::string secret;
  int rank = 0;
  int world_size = 0;
  std::string host_id;
  std::string host_name;
  std::uint32_t process = 0;
  /// How long the rank is ready to wait for the others.
  std::uint64_t patience_ms = 0;
};
struct Refused {
  Status cause;
};
struct Welcome {
  std::string session;
  std::uint32_t interval_ms = 0;
  std::uint32_t timeout_ms = 0;
};
/// The second connection of a rank, for large payloads.
struct Attach {
  std::string session;
};
struct Ready {};
struct Pulse {};
struct Leave {};
struct Left {};
struct Channel {
  std::uint64_t epoch = 0;
  std::string address;
};
struct Lost {
  int rank = 0;
  std::string host_id;
  std::vector<Channel> channels;
  Status cause;
};

enum class Call : std::uint8_t { kAllGather = 0, kBarrier = 1, kVote = 2, kBeginUpdate = 3 };
struct Contribute {
  std::uint64_t request = 0;
  Call call = Call::kBarrier;
  std::string tag;
  std::vector<int> ranks;
  std::uint64_t epoch = 0;
  Status vote;
};
struct Withdraw {
  std::uint64_t request = 0;
  Status cause;
};
struct Put {
  std::uint64_t request = 0;
  std::string key;
};
struct Get {
  std::uint64_t request = 0;
  std::string key;
};
struct Contains {
  std::uint64_t request = 0;
  std::string key;
};
struct Erase {
  std::uint64_t request = 0;
  std::string key;
};
/// `number`: the epoch of a begun update; 1 or 0 for Contains.
struct Outcome {
  std::uint64_t request = 0;
  Status cause;
  std::uint64_t number = 0;
};

struct EndUpdate {
  std::uint64_t epoch = 0;
};
struct Abort {
  std::uint64_t epoch = 0;
  Status cause;
};
/// `peer`: the receiver on the way to the hub, the sender on the way from it.
struct Relay {
  int peer = 0;
  std::uint64_t epoch = 0;
};
struct PublishChannel {
  std::uint64_t epoch = 0;
  std::string address;
};
struct WithdrawChannel {
  std::uint64_t epoch = 0;
};

using Message = std::variant<Join, Refused, Welcome, Attach, Ready, Pulse, Leave, Left, Lost,
                             Contribute, Withdraw, Put, Get, Contains, Erase, Outcome, EndUpdate,
                             Abort, Relay, PublishChannel, WithdrawChannel>;

/// A message with the bytes that travel behind it.
struct Envelope {
  Message message;
  std::vector<Payload> payloads;
};

std::size_t payload_bytes(const std::vector<Payload>& payloads);
std::vector<std::byte> encode(const Message& message);
/// kProtocol for anything that encode() did not write: any bytes are safe to give.
Result<Message> decode(std::span<const std::byte> frame);

}  // namespace ckpt::control
