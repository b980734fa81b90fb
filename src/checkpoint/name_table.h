// Many names, found and compared in n log n whatever the names are: a checkpoint may come from a
// stranger, so a table that crafted names can make quadratic will not do.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace ckpt {

/// Immutable after construction; refers to the caller's text. Const methods from any thread.
class NameTable {
 public:
  explicit NameTable(std::vector<std::string_view> names);

  /// Two indices of an equal name, the smaller first; the pair that ends first, so that the answer
  /// does not depend on the hash.
  std::optional<std::pair<std::size_t, std::size_t>> duplicate() const;
  /// Index of `name`; any of them when it is there twice.
  std::optional<std::size_t> find(std::string_view name) const;

 private:
  struct Slot {
    std::uint64_t hash;
    std::uint32_t index;
  };
  std::vector<std::string_view> names_;
  std::vector<Slot> slots_;  // by hash, then by name, then by index
};

}  // namespace ckpt
