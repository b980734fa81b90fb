// A tensor's name taken apart for plan order: where it stands in the model, and its group.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ckpt {

enum class PlanSection : std::uint8_t { kBeforeLayers = 0, kLayers = 1, kBehindLayers = 2 };

/// Refers to the text of the name that it was parsed from.
struct PlanKey {
  /// The group's name is `head`, which begins the tensor's name, followed by `tail`. `tail` is
  /// empty or the name of what an engine makes of several modules, and `head` ends with the dot
  /// before it.
  std::string_view head;
  std::string_view tail;
  PlanSection section = PlanSection::kBeforeLayers;
  std::string_view stack;   ///< what stands before the layer number, e.g. "model.layers."
  std::uint32_t layer = 0;  ///< 0 outside the layers
  std::size_t module = 0;   ///< where in `head` the text behind the layer number begins
};

PlanKey parse_plan_key(std::string_view tensor_name);

/// The value of a component that is a plain decimal number below 10^9 without leading zeros; any
/// other component counts as text.
std::optional<std::uint32_t> component_number(std::string_view component);

/// The parts of a group's name between dots, from PlanKey::module on.
class PlanKeyComponents {
 public:
  explicit PlanKeyComponents(const PlanKey& key)
      : head_(key.head.substr(key.module)), tail_(key.tail) {}

  /// Nothing at the end. A component may be empty.
  std::optional<std::string_view> next();

 private:
  std::string_view head_;
  std::string_view tail_;
  bool head_is_over_ = false;
};

/// Order of groups: section, stack, layer number, then component by component, what has ended
/// before a number before a text. Groups that are equal so far (a dot too many at the end) by
/// length of `head`: equal keys are then equal groups.
std::strong_ordering compare_groups(const PlanKey& a, const PlanKey& b);

}  // namespace ckpt
