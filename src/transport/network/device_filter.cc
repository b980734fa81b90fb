#include "transport/network/device_filter.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/strings.h"

namespace ckpt {
namespace {

struct Wanted {
  std::string name;
  std::string port;  ///< with its colon, as a number; empty: none given
};

/// What comes behind the name: digits up to what is none. No port has the number 0, so that text
/// matches nothing. A third and fourth part (rail, plane) says nothing about ports.
std::string port_of(std::string_view text) {
  text = trim(text.substr(0, text.find(':')));
  if (text.empty()) return {};
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return concat(':', number);
}

/// An item without a name counts for nothing, whatever is behind its colon.
std::vector<Wanted> items_of(std::string_view list) {
  std::vector<Wanted> items;
  for (const std::string& item : split(list, ',')) {
    const std::string_view text = trim(item);
    const std::size_t colon = text.find(':');
    const std::string_view name = trim(text.substr(0, colon));
    if (name.empty()) continue;
    if (items.size() == kMostDevices) break;
    items.push_back(
        {std::string(name), colon == text.npos ? std::string() : port_of(text.substr(colon + 1))});
  }
  return items;
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

std::string_view take_number(std::string_view& text) {
  std::size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
  return digits;
}

std::string known(const std::vector<std::string>& available) {
  return available.empty() ? "there are none" : concat("there are ", join(available, ", "));
}

std::vector<std::string> limited(std::vector<std::string> devices) {
  if (devices.size() > kMostDevices) devices.resize(kMostDevices);
  return devices;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const std::string_view left = take_number(a), right = take_number(b);
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
      continue;
    }
    if (a[0] != b[0]) return a[0] < b[0];
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.empty() && !b.empty();
}

Result<std::vector<std::string>> listed_devices(std::string_view list,
                                                std::vector<std::string> available) {
  std::ranges::sort(available, natural_less);
  std::vector<std::string> devices;
  for (const Wanted& wanted : items_of(list)) {
    if (std::ranges::find(available, wanted.name) == available.end()) {
      return not_found(concat("no RDMA device ", quoted(wanted.name),
                              " (PS_P2P_STORE_RDMA_DEVICES=", list, "): ", known(available)));
    }
    std::string device = wanted.name + wanted.port;
    if (std::ranges::find(devices, device) == devices.end()) devices.push_back(std::move(device));
  }
  if (devices.empty()) {
    return not_found(
        concat("PS_P2P_STORE_RDMA_DEVICES=", list, " names no RDMA device: ", known(available)));
  }
  return limited(std::move(devices));
}

Result<std::vector<std::string>> nccl_devices(std::string_view filter,
                                              std::vector<std::string> active_ports) {
  std::ranges::sort(active_ports, natural_less);
  std::string_view rest = trim(filter);
  const bool exclude = rest.starts_with('^');
  if (exclude) rest.remove_prefix(1);
  const bool exact = rest.starts_with('=');
  if (exact) rest.remove_prefix(1);
  const std::vector<Wanted> items = items_of(rest);
  // An empty list matches everything: without it all are left, all but it are none.
  if (items.empty() && !exclude) return limited(std::move(active_ports));
  const auto matches = [&](std::string_view active, const Wanted& wanted) {
    const std::size_t colon = active.find(':');
    const std::string_view name = active.substr(0, colon), port = active.substr(colon);
    if (!wanted.port.empty() && wanted.port != port) return false;
    return exact ? name == wanted.name : name.starts_with(wanted.name);
  };
  std::vector<std::string> chosen;
  if (exclude) {
    for (const std::string& active : active_ports) {
      const bool out = items.empty() || std::ranges::any_of(items, [&](const Wanted& wanted) {
                         return matches(active, wanted);
                       });
      if (!out) chosen.push_back(active);
    }
  } else {
    for (const Wanted& wanted : items) {
      for (const std::string& active : active_ports) {
        if (!matches(active, wanted)) continue;
        if (std::ranges::find(chosen, active) == chosen.end()) chosen.push_back(active);
      }
    }
  }
  if (chosen.empty()) {
    return not_found(concat("NCCL_IB_HCA=", filter,
                            " leaves no RDMA device with an active port: ", known(active_ports)));
  }
  return limited(std::move(chosen));
}

}  // namespace ckpt
