#include "http/receiving_instance.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "base/strings.h"

namespace ckpt {

ReceivingInstance::ReceivingInstance(InstanceOptions options) : options_(std::move(options)) {
  for (int i = 0; i < workers(); ++i) memory_.push_back(std::make_unique<WorkerMemory>());
  health_ = WorkerMemory().complete();
}

Status ReceivingInstance::check_keys(const std::map<std::string, std::string>& addresses) const {
  const auto& keys = options_.worker_keys;
  std::vector<std::string> given;
  for (const auto& [key, address] : addresses) given.push_back(key);
  const bool all_there = std::all_of(keys.begin(), keys.end(),
                                     [&](const auto& key) { return addresses.contains(key); });
  if (all_there && given.size() == keys.size()) return Status::ok();
  return invalid_argument(concat("addresses for workers ", join(given, ", "),
                                 " are given, but this instance has ", join(keys, ", "),
                                 "; set --inference-parallel-size to ", keys.size()));
}

Result<InstanceReport> ReceivingInstance::update(
    const std::map<std::string, std::string>& addresses, double timeout_seconds) {
  CKPT_RETURN_IF_ERROR(check_keys(addresses));
  {
    const std::lock_guard lock(state_mutex_);
    if (updating_) return failed_precondition("another update of this instance is running");
    updating_ = true;
  }
  const std::lock_guard memory_lock(memory_mutex_);
  auto report = update_workers(addresses, timeout_seconds);
  Status health;
  for (std::size_t i = 0; i < memory_.size() && health.is_ok(); ++i) {
    health = memory_[i]->complete().with_context(concat("worker ", options_.worker_keys[i]));
  }
  const std::lock_guard lock(state_mutex_);
  updating_ = false;
  health_ = health;
  return report;
}

Result<InstanceReport> ReceivingInstance::update_workers(
    const std::map<std::string, std::string>& addresses, double timeout_seconds) {
  const auto start = std::chrono::steady_clock::now();
  ReceiverOptions receiver = options_.receiver;
  receiver.timeout_seconds = std::min(receiver.timeout_seconds, timeout_seconds);
  std::vector<std::optional<Result<ReceiveReport>>> results(memory_.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    threads.emplace_back([&, i] {
      WorkerMemory& memory = *memory_[i];
      memory.begin_update();
      results[i] = options_.update_weights(addresses.at(options_.worker_keys[i]), memory, receiver);
      memory.end_update(results[i]->is_ok());
    });
  }
  for (auto& thread : threads) thread.join();
  InstanceReport report;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i]->is_ok()) {
      return results[i]->status().with_context(concat("worker ", options_.worker_keys[i]));
    }
    report.workers.push_back(**results[i]);
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

Status ReceivingInstance::health() const {
  const std::lock_guard lock(state_mutex_);
  if (updating_) return failed_precondition("an update is running");
  return health_;
}

bool ReceivingInstance::updating() const {
  const std::lock_guard lock(state_mutex_);
  return updating_;
}

Status ReceivingInstance::with_memory(
    const std::function<Status(const std::vector<const WorkerMemory*>& workers)>& body) {
  const std::lock_guard lock(memory_mutex_);
  std::vector<const WorkerMemory*> workers;
  for (const auto& memory : memory_) workers.push_back(memory.get());
  return body(workers);
}

}  // namespace ckpt
