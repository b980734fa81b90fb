#include "control/key_value_store.h"

#include <utility>

namespace ckpt::control {

std::vector<KeyValueStore::Waiter> KeyValueStore::put(const std::string& key, Payload value) {
  values_.insert_or_assign(key, std::move(value));
  auto waiting = waiters_.extract(key);
  return waiting.empty() ? std::vector<Waiter>() : std::move(waiting.mapped());
}

std::optional<Payload> KeyValueStore::get(const std::string& key, Waiter waiter) {
  const auto found = values_.find(key);
  if (found != values_.end()) return found->second;
  waiters_[key].push_back(waiter);
  return std::nullopt;
}

bool KeyValueStore::withdraw(Waiter waiter) {
  for (auto entry = waiters_.begin(); entry != waiters_.end(); ++entry) {
    if (std::erase(entry->second, waiter) == 0) continue;
    if (entry->second.empty()) waiters_.erase(entry);
    return true;
  }
  return false;
}

void KeyValueStore::remove_rank(int rank) {
  for (auto& [key, waiters] : waiters_) {
    std::erase_if(waiters, [rank](const Waiter& waiter) { return waiter.rank == rank; });
  }
  std::erase_if(waiters_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace ckpt::control
