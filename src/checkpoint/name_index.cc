#include "checkpoint/name_index.h"

#include <bit>
#include <random>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ckpt {
namespace {

std::uint64_t random_seed() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

}  // namespace

std::uint64_t name_hash(std::string_view name) {
  static const std::uint64_t seed = random_seed();
  return XXH3_64bits_withSeed(name.data(), name.size(), seed);
}

NameIndex::NameIndex(std::size_t expected_names) {
  grow(std::bit_ceil(2 * expected_names + 16));
  names_.reserve(expected_names);
}

std::pair<std::uint32_t, bool> NameIndex::insert(std::string_view name, std::uint64_t hash) {
  if (2 * names_.size() >= slots_.size()) grow(2 * slots_.size());
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    Slot& slot = slots_[at];
    if (slot.number == kEmpty) {
      slot = {hash, static_cast<std::uint32_t>(names_.size())};
      names_.push_back(name);
      return {slot.number, true};
    }
    if (slot.hash == hash && names_[slot.number] == name) return {slot.number, false};
  }
}

void NameIndex::grow(std::size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  const std::size_t mask = slots - 1;
  for (const Slot& slot : old) {
    if (slot.number == kEmpty) continue;
    std::size_t at = slot.hash & mask;
    while (slots_[at].number != kEmpty) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

}  // namespace ckpt
