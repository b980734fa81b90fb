// Control messages of the ucx transport and the header of its data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt::ucx {

inline constexpr std::uint16_t kMessageVersion = 2;

/// A reader introduces itself and says whom it believes to reach.
struct Hello {
  std::uint16_t version = kMessageVersion;
  std::string instance;
  std::string label;
  std::vector<std::byte> address;  ///< where answers go
  std::string owner_instance;
  std::uint64_t address_seal = 0;  ///< seal_of(address, owner_instance)
};

/// Asks for bytes; the answer is one data message with all spans, end to end.
struct Request {
  struct Span {
    std::uint64_t region = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;

    bool operator==(const Span&) const = default;
  };
  std::uint64_t read = 0;
  std::uint32_t request = 0;
  std::vector<Span> spans;
};

struct Signal {
  std::vector<std::byte> message;
};

/// The reader's last message. The owner answers with a Refusal of the connection, behind everything
/// that it has handled.
struct Bye {};

/// Ends one read; read 0 stands for the connection.
struct Refusal {
  std::uint64_t read = 0;
  StatusCode code = StatusCode::kInternal;
  std::string text;
};

/// The data of a request was still the owner's own when the last byte had left.
struct Served {
  std::uint64_t read = 0;
  std::uint32_t request = 0;
};

struct Message {
  std::uint64_t connection = 0;  ///< chosen by the reader at random
  std::uint64_t sequence = 0;    ///< counts the reader's messages from 0
  std::variant<Hello, Request, Signal, Refusal, Served, Bye> body;
};

std::vector<std::byte> encode_message(const Message& message);
/// kProtocol when the bytes are damaged.
Result<Message> decode_message(std::span<const std::byte> bytes);

/// Travels before the bytes of a request; little-endian.
struct DataHeader {
  std::uint64_t connection = 0;
  std::uint64_t read = 0;
  std::uint32_t request = 0;
  /// 1: the bytes were copied out of the region before they were sent, no Served follows.
  std::uint32_t snapshot = 0;
};
static_assert(sizeof(DataHeader) == 24);

}  // namespace ckpt::ucx
