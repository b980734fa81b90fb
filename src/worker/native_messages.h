// Messages of the native wire (schema/worker.fbs) as values, and their encoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint_engine/status.h"
#include "checkpoint_engine/tensor.h"
#include "device/device.h"
#include "worker/channel.h"

namespace ckpt::native {

using Bytes = std::vector<std::byte>;

/// Raised when an old peer could misread what a new one means.
inline constexpr std::uint32_t kProtocol = 1;
inline constexpr std::uint64_t kCanOpenHostRings = 1;
inline constexpr std::uint64_t kCanOpenCudaRings = 2;

struct Hello {
  std::uint32_t protocol = kProtocol;
  std::string software;
  std::int64_t pid = 0;
  std::uint64_t capabilities = 0;
  std::uint32_t digest_algorithm = 0;
  Bytes nonce;
  bool has_secret = false;
  bool operator==(const Hello&) const = default;
};
struct Challenge {
  std::uint32_t protocol = kProtocol;
  std::string software;
  Bytes nonce;
  Bytes proof;
  bool has_secret = false;
  bool operator==(const Challenge&) const = default;
};
struct Proof {
  Bytes proof;
  bool operator==(const Proof&) const = default;
};
struct Welcome {
  std::int32_t rank = 0;
  bool verify = true;
  std::uint32_t digest_algorithm = 0;
  std::uint64_t total_tensors = 0;
  std::uint64_t total_bytes = 0;
  bool operator==(const Welcome&) const = default;
};
struct OpenRing {
  BufferHandle ring;
};
struct RingOpened {};
struct Entry {
  TensorInfo info;  ///< made by make_tensor_info: bytes agree with shape and dtype
  std::uint64_t ring_offset = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t digest = 0;
  bool operator==(const Entry&) const = default;
};
struct Bucket {
  std::uint32_t number = 0;
  std::vector<Entry> entries;
  bool operator==(const Bucket&) const = default;
};
struct BucketLoaded {
  BucketAck ack;
};
struct Release {};
struct Released {};
struct FinishPass {};
struct PassFinished {};
struct Failure {
  Status cause;  ///< never ok
};

/// In the order of the schema's union.
using Body = std::variant<Hello, Challenge, Proof, Welcome, OpenRing, RingOpened, Bucket,
                          BucketLoaded, Release, Released, FinishPass, PassFinished, Failure>;

struct Message {
  std::uint64_t epoch = 0;
  Body body;
};

/// As the schema calls it, for messages of ours: "Welcome".
std::string_view body_name(const Body& body);

Bytes encode(std::uint64_t epoch, const Body& body);
/// encode() of a Bucket without a copy of its entries first.
Bytes encode_bucket(std::uint64_t epoch, std::uint32_t number, std::span<const RingEntry> entries);

/// kProtocol with the reason when `message` is not one: every offset, length, dtype, shape and code
/// is checked here. Places in the ring are not: only who has opened it knows its size. Any
/// alignment.
Result<Message> decode(std::span<const std::byte> message);

}  // namespace ckpt::native
