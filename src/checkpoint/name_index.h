// Numbers for names in the order in which they first appear.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace ckpt {

/// 64-bit hash of `name` for look-ups in this process only: its seed is drawn at the first call, so
/// that nobody can prepare names that collide. Any thread.
std::uint64_t name_hash(std::string_view name);

/// An open-addressing map from names to 0, 1, 2, ... Refers to the text of its names, which must
/// outlive it. Look-ups are linear in the probes, and names are compared whenever hashes are equal.
class NameIndex {
 public:
  explicit NameIndex(std::size_t expected_names = 0);

  /// Number of `name`, and whether it is new. `hash` is name_hash(name).
  std::pair<std::uint32_t, bool> insert(std::string_view name, std::uint64_t hash);
  /// Brings the place of `hash` into the cache: a few insertions ahead, it halves their time.
  void prefetch(std::uint64_t hash) const {
    __builtin_prefetch(&slots_[static_cast<std::uint32_t>(hash) & (slots_.size() - 1)], 1);
  }
  /// Number of `name`, if it is there.
  std::optional<std::uint32_t> find(std::string_view name, std::uint64_t hash) const;
  /// By number.
  const std::vector<std::string_view>& names() const { return names_; }

 private:
  static constexpr std::uint32_t kEmpty = 0xFFFFFFFF;
  struct Slot {
    std::uint32_t hash = 0;  // the lower half: enough to place it, and to spare most comparisons
    std::uint32_t number = kEmpty;
  };

  void grow(std::size_t slots);
  /// The slot of `name`, or the empty one where it would go.
  std::size_t slot_of(std::string_view name, std::uint64_t hash) const;

  std::vector<Slot> slots_;  // a power of two, at most half full
  std::vector<std::string_view> names_;
};

}  // namespace ckpt
