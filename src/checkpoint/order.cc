#include "checkpoint/order.h"

#include <algorithm>
#include <array>
#include <numeric>

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

struct SortKey {
  static constexpr std::size_t kSymbols = 8;
  // section, stack, layer, then the first components of the module
  std::array<std::uint32_t, kSymbols> symbols{};
  std::uint32_t index;
  bool cut = false;  // the group has more components than fit
};

SortKey make_sort_key(std::string_view name, std::uint32_t index, Symbols& symbols) {
  const PlanKey key = parse_plan_key(name);
  SortKey out;
  out.index = index;
  out.symbols[0] = symbols.number(static_cast<std::uint32_t>(key.section));
  out.symbols[1] = symbols.text(key.stack);
  out.symbols[2] = symbols.number(key.layer);
  PlanKeyComponents components(key);
  for (std::size_t i = 3;; ++i) {
    const auto component = components.next();
    if (!component) break;
    if (i == SortKey::kSymbols) {
      out.cut = true;
      break;
    }
    const auto number = component_number(*component);
    out.symbols[i] = number ? symbols.number(*number) : symbols.text(*component);
  }
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
  const PlanKey a_key = parse_plan_key(a);
  const PlanKey b_key = parse_plan_key(b);
  if (group_order_less(a_key, b_key)) return true;
  if (group_order_less(b_key, a_key)) return false;
  return a < b;
}

std::vector<std::uint32_t> plan_order(const std::vector<TensorInfo>& tensors) {
  Symbols symbols;
  std::vector<SortKey> keys;
  keys.reserve(tensors.size());
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    keys.push_back(make_sort_key(tensors[i].name, i, symbols));
  }
  symbols.rank_texts();
  for (SortKey& key : keys) {
    for (std::uint32_t& symbol : key.symbols) symbol = symbols.ranked(symbol);
  }
  // Equal names, which the readers refuse, keep their order: the result is the same everywhere.
  std::sort(keys.begin(), keys.end(), [&](const SortKey& a, const SortKey& b) {
    if (a.symbols != b.symbols) return a.symbols < b.symbols;
    const std::string& a_name = tensors[a.index].name;
    const std::string& b_name = tensors[b.index].name;
    if (a_name == b_name) return a.index < b.index;
    return a.cut || b.cut ? plan_order_less(a_name, b_name) : a_name < b_name;
  });
  std::vector<std::uint32_t> order(tensors.size());
  std::transform(keys.begin(), keys.end(), order.begin(),
                 [](const SortKey& key) { return key.index; });
  return order;
}

}  // namespace ckpt
