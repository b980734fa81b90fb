#include "parameter_server/engine_instances.h"

#include "base/env.h"
#include "base/strings.h"
#include "checkpoint_engine/parameter_server.h"

namespace ckpt {

Result<std::vector<std::vector<int>>> engine_instances(const std::vector<int>& recipients,
                                                       int instance_size) {
  if (instance_size == 0) {
    CKPT_ASSIGN_OR_RETURN(const auto from_environment, env_int({"PS_INSTANCE_SIZE"}));
    instance_size =
        static_cast<int>(from_environment.value_or(static_cast<std::int64_t>(recipients.size())));
  }
  if (recipients.empty()) return std::vector<std::vector<int>>();
  if (instance_size <= 0 || recipients.size() % static_cast<std::size_t>(instance_size) != 0) {
    return invalid_argument(
        concat("an instance size of ", instance_size, " does not divide ", recipients.size(),
               " recipients; set --inference-parallel-size or PS_INSTANCE_SIZE to the number of "
               "workers of one engine"));
  }
  std::vector<std::vector<int>> instances;
  for (std::size_t i = 0; i < recipients.size(); i += static_cast<std::size_t>(instance_size)) {
    instances.emplace_back(recipients.begin() + static_cast<std::ptrdiff_t>(i),
                           recipients.begin() + static_cast<std::ptrdiff_t>(i) + instance_size);
  }
  return instances;
}

Result<std::map<std::string, std::string>> engine_instance(
    const std::vector<WorkerAddress>& all_ranks, int rank, int instance_size) {
  std::vector<int> recipients;
  for (std::size_t i = 0; i < all_ranks.size(); ++i) {
    if (!all_ranks[i].address.empty()) recipients.push_back(static_cast<int>(i));
  }
  CKPT_ASSIGN_OR_RETURN(const auto instances, engine_instances(recipients, instance_size));
  std::map<std::string, std::string> addresses;
  for (const std::vector<int>& instance : instances) {
    if (instance.front() != rank) continue;
    for (const int member : instance) {
      const WorkerAddress& worker = all_ranks[static_cast<std::size_t>(member)];
      if (!addresses.emplace(worker.key, worker.address).second) {
        return invalid_argument(concat("two workers of the instance of rank ", rank,
                                       " have the key ", worker.key,
                                       ": is the instance size right?"));
      }
    }
  }
  return addresses;
}

}  // namespace ckpt
