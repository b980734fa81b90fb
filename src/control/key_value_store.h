// Values by key, and who waits for which key. Pure logic of the hub.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "control/payload.h"

namespace ckpt::control {

class KeyValueStore {
 public:
  struct Waiter {
    int rank = 0;
    std::uint64_t request = 0;
    bool operator==(const Waiter&) const = default;
  };

  /// Stores over an older value; returns those who waited for the key, in order of their coming.
  std::vector<Waiter> put(const std::string& key, Payload value);
  /// The value, or nothing: then `waiter` is returned by the put to come.
  std::optional<Payload> get(const std::string& key, Waiter waiter);
  bool contains(const std::string& key) const { return values_.contains(key); }
  void erase(const std::string& key) { values_.erase(key); }
  /// False when it does not wait.
  bool withdraw(Waiter waiter);
  void remove_rank(int rank);

 private:
  std::map<std::string, Payload> values_;
  std::map<std::string, std::vector<Waiter>> waiters_;
};

}  // namespace ckpt::control
