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
  Slot& slot = slots_[slot_of(name, hash)];
  if (slot.number != kEmpty) return {slot.number, false};
  slot = {static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(names_.size())};
  names_.push_back(name);
  return {slot.number, true};
}

std::optional<std::uint32_t> NameIndex::find(std::string_view name, std::uint64_t hash) const {
  const Slot& slot = slots_[slot_of(name, hash)];
  if (slot.number == kEmpty) return std::nullopt;
  return slot.number;
}

std::size_t NameIndex::slot_of(std::string_view name, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  const auto half = static_cast<std::uint32_t>(hash);
  std::size_t at = half & mask;
  while (slots_[at].number != kEmpty &&
         !(slots_[at].hash == half && names_[slots_[at].number] == name)) {
    at = (at + 1) & mask;
  }
  return at;
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
