#include "checkpoint/name_table.h"

#include <algorithm>
#include <functional>
#include <tuple>

namespace ckpt {

NameTable::NameTable(std::vector<std::string_view> names) : names_(std::move(names)) {
  slots_.reserve(names_.size());
  for (const std::string_view name : names_) {
    slots_.push_back(
        {std::hash<std::string_view>{}(name), static_cast<std::uint32_t>(slots_.size())});
  }
  std::sort(slots_.begin(), slots_.end(), [this](const Slot& a, const Slot& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    return std::tie(names_[a.index], a.index) < std::tie(names_[b.index], b.index);
  });
}

std::optional<std::pair<std::size_t, std::size_t>> NameTable::duplicate() const {
  std::optional<std::pair<std::size_t, std::size_t>> found;
  for (std::size_t i = 1; i < slots_.size(); ++i) {
    const Slot &a = slots_[i - 1], &b = slots_[i];
    if (a.hash == b.hash && names_[a.index] == names_[b.index] &&
        (!found || b.index < found->second)) {
      found.emplace(a.index, b.index);
    }
  }
  return found;
}

std::optional<std::size_t> NameTable::find(std::string_view name) const {
  const std::uint64_t hash = std::hash<std::string_view>{}(name);
  const auto at = std::lower_bound(
      slots_.begin(), slots_.end(), std::pair(hash, name),
      [this](const Slot& slot, const auto& key) {
        return slot.hash != key.first ? slot.hash < key.first : names_[slot.index] < key.second;
      });
  if (at == slots_.end() || at->hash != hash || names_[at->index] != name) return std::nullopt;
  return at->index;
}

}  // namespace ckpt
