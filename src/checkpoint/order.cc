#include "checkpoint/order.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "checkpoint/name_index.h"
#include "checkpoint/plan_key.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ckpt {
namespace {

// Numbers keep their value, texts their rank among all texts behind the numbers, 0 is the end: so
// that comparing symbols compares components.
class Symbols {
 public:
  std::uint32_t number(std::uint32_t value) const { return value + 1; }
  std::uint32_t text(std::string_view component) {
    return kFirstText + index_.insert(component, name_hash(component)).first;
  }
  /// To be called once, when all texts are known.
  void rank_texts() {
    const std::vector<std::string_view>& texts = index_.names();
    std::vector<std::uint32_t> sorted(texts.size());
    std::iota(sorted.begin(), sorted.end(), 0);
    std::sort(sorted.begin(), sorted.end(),
              [&](std::uint32_t a, std::uint32_t b) { return texts[a] < texts[b]; });
    ranks_.resize(texts.size());
    for (std::uint32_t i = 0; i < sorted.size(); ++i) ranks_[sorted[i]] = i;
  }
  std::uint32_t ranked(std::uint32_t symbol) const {
    return symbol < kFirstText ? symbol : kFirstText + ranks_[symbol - kFirstText];
  }

 private:
  static constexpr std::uint32_t kFirstText = 1u << 31;
  NameIndex index_;
  std::vector<std::uint32_t> ranks_;
};

// Compares as (group, what the name has behind the group's head).
struct SortKey {
  static constexpr std::size_t kComponents = 4;
  PlanSection section;
  bool cut = false;  // the module has more components than fit
  std::uint32_t stack;
  std::uint32_t layer;
  std::array<std::uint32_t, kComponents> module{};
  std::uint32_t head_size;
  std::uint32_t rest;
  std::uint32_t index;
};

SortKey make_sort_key(std::string_view name, std::uint32_t index, Symbols& symbols) {
  const PlanKey key = parse_plan_key(name);
  SortKey out;
  out.index = index;
  out.stack = symbols.text(key.stack);
  out.section = key.section;
  out.layer = key.layer;
  PlanKeyComponents components(key);
  for (std::size_t i = 0; const auto component = components.next(); ++i) {
    if (i == SortKey::kComponents) {
      out.cut = true;
      break;
    }
    const auto number = component_number(*component);
    out.module[i] = number ? symbols.number(*number) : symbols.text(*component);
  }
  out.head_size = static_cast<std::uint32_t>(key.head.size());
  out.rest = symbols.text(name.substr(key.head.size()));
  return out;
}

}  // namespace

std::string group_name(std::string_view tensor_name) {
  const PlanKey key = parse_plan_key(tensor_name);
  std::string name(key.head);
  name += key.tail;
  return name;
}

std::uint64_t group_id(std::string_view tensor_name) {
  const PlanKey key = parse_plan_key(tensor_name);
  std::array<char, 256> buffer;
  const std::size_t size = key.head.size() + key.tail.size();
  if (size > buffer.size()) {
    const std::string name = group_name(tensor_name);
    return XXH3_64bits(name.data(), name.size());
  }
  std::copy(key.tail.begin(), key.tail.end(),
            std::copy(key.head.begin(), key.head.end(), buffer.begin()));
  return XXH3_64bits(buffer.data(), size);
}

bool plan_order_less(std::string_view a, std::string_view b) {
  const auto order = compare_groups(parse_plan_key(a), parse_plan_key(b));
  return order != 0 ? order < 0 : a < b;
}

std::vector<std::uint32_t> plan_order(const std::vector<TensorInfo>& tensors) {
  Symbols symbols;
  std::vector<SortKey> keys;
  keys.reserve(tensors.size());
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    // Names lie anywhere on the heap: waiting for them would take most of the time.
    constexpr std::size_t kAhead = 16;
    if (i + kAhead < tensors.size()) __builtin_prefetch(tensors[i + kAhead].name.data());
    keys.push_back(make_sort_key(tensors[i].name, i, symbols));
  }
  symbols.rank_texts();
  for (SortKey& key : keys) {
    key.stack = symbols.ranked(key.stack);
    for (std::uint32_t& component : key.module) component = symbols.ranked(component);
    key.rest = symbols.ranked(key.rest);
  }
  std::sort(keys.begin(), keys.end(), [&](const SortKey& a, const SortKey& b) {
    if (a.section != b.section) return a.section < b.section;
    if (a.stack != b.stack) return a.stack < b.stack;
    if (a.layer != b.layer) return a.layer < b.layer;
    if (a.module != b.module) return a.module < b.module;
    const std::string& a_name = tensors[a.index].name;
    const std::string& b_name = tensors[b.index].name;
    if ((a.cut || b.cut) && a_name != b_name) return plan_order_less(a_name, b_name);
    // Equal names, which the readers refuse, keep their order: the result is the same everywhere.
    return std::tie(a.head_size, a.rest, a.index) < std::tie(b.head_size, b.rest, b.index);
  });
  std::vector<std::uint32_t> order(tensors.size());
  std::transform(keys.begin(), keys.end(), order.begin(),
                 [](const SortKey& key) { return key.index; });
  return order;
}

}  // namespace ckpt
