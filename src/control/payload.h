// Bytes that the hub only passes on: counted, never copied.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace ckpt::control {

/// Immutable bytes and whatever keeps them alive. Copies share; any thread may hold one.
class Payload {
 public:
  Payload() = default;
  Payload(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  static Payload copy_of(std::span<const std::byte> bytes) {
    auto owner = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
    const std::span<const std::byte> view(*owner);
    return {std::move(owner), view};
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte> to_vector() const { return {bytes_.begin(), bytes_.end()}; }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

}  // namespace ckpt::control
