// The bytes by which a process tells others how to read its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt {

inline constexpr std::uint16_t kDescriptorVersion = 2;

/// What a descriptor says.
struct Descriptor {
  struct Region {
    std::uint64_t id = 0;
    std::uint64_t bytes = 0;
    std::uint64_t address = 0;  ///< in the owner; 0 where readers do not need it

    bool operator==(const Region&) const = default;
  };
  std::string kind;      ///< Transport::name
  std::string instance;  ///< Transport::instance
  std::string label;
  std::vector<std::byte> address;  ///< of the transport's own form
  std::vector<Region> regions;     ///< in order of registration

  bool operator==(const Descriptor&) const = default;
};

/// With a seal behind it (seal.h): descriptors lie in files, and what is in them goes to libraries
/// that trust it.
std::vector<std::byte> encode_descriptor(const Descriptor& descriptor);
/// kProtocol when the bytes are damaged, or of another version or kind than `kind` (empty: of any
/// kind).
Result<Descriptor> decode_descriptor(std::span<const std::byte> bytes, std::string_view kind);

}  // namespace ckpt
