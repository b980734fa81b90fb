#include "collective/testing/fake_nccl.h"

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace ckpt {

// What NcclHandle points to.
struct NcclOpaque {
  int rank;
  std::string world;
  std::size_t groups = 0;  // called so far
  int error = 0;
};

}  // namespace ckpt

namespace ckpt::testing {
namespace {

struct Call {
  const std::byte* from;
  std::byte* to;
  std::size_t bytes;
  int root;
};

/// A communicator as all its ranks see it.
struct World {
  int size = 0;
  int joined = 0;
  int members = 0;  // that live
  int finalized = 0;
  std::map<std::size_t, std::map<int, std::vector<Call>>> waiting;  // by group, then rank
  std::size_t complete = 0;
};

std::mutex mutex;  // guards all below
std::map<std::string, World> worlds;
int last_id = 0, found_mistakes = 0, living = 0;
bool waits_for_members = true;
NcclResult next_failure = kNcclSuccess;
NcclResult failure_of_all = kNcclSuccess;
std::function<void(int, std::size_t)> group_watcher;

thread_local std::vector<std::pair<NcclHandle, Call>> open_group;

void complete_group(World& world, std::map<int, std::vector<Call>>& by_rank) {
  const std::vector<Call>& first = by_rank.begin()->second;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto source = by_rank.find(first[i].root);
    for (auto& [rank, calls] : by_rank) {
      if (calls.size() != first.size() || calls[i].root != first[i].root ||
          calls[i].bytes != first[i].bytes || source == by_rank.end()) {
        ++found_mistakes;
        return;
      }
      if (calls[i].to != source->second[i].from) {
        std::memcpy(calls[i].to, source->second[i].from, calls[i].bytes);
      }
    }
  }
  ++world.complete;
}

int get_version(int* version) {
  *version = 22800;
  return kNcclSuccess;
}

int get_unique_id(NcclUniqueId* id) {
  const std::lock_guard lock(mutex);
  std::memset(id->bytes, 0, sizeof(id->bytes));
  const std::string name = "fake-" + std::to_string(++last_id);
  std::memcpy(id->bytes, name.data(), name.size());
  return kNcclSuccess;
}

int init(NcclHandle* comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config) {
  const std::lock_guard lock(mutex);
  if (config->blocking != 0) ++found_mistakes;
  World& world = worlds[id.bytes];
  world.size = ranks;
  ++world.joined;
  ++world.members;
  ++living;
  *comm = new NcclOpaque{rank, id.bytes};
  return waits_for_members ? kNcclInProgress : kNcclSuccess;
}

int async_error(NcclHandle comm, int* result) {
  const std::lock_guard lock(mutex);
  const World& world = worlds[comm->world];
  if (comm->error != 0 || failure_of_all != kNcclSuccess) {
    *result = comm->error != 0 ? comm->error : failure_of_all;
  } else if (waits_for_members && world.joined < world.size) {
    *result = kNcclInProgress;
  } else if (world.finalized > 0 && world.finalized < world.size) {
    *result = kNcclInProgress;
  } else {
    *result = world.complete < comm->groups ? kNcclInProgress : kNcclSuccess;
  }
  return kNcclSuccess;
}

int finalize(NcclHandle comm) {
  const std::lock_guard lock(mutex);
  ++worlds[comm->world].finalized;
  return kNcclInProgress;
}

int end(NcclHandle comm) {
  const std::lock_guard lock(mutex);
  --living;
  const auto world = worlds.find(comm->world);
  // Its memory may go now: no call that it has made is completed by others.
  for (auto& [group, by_rank] : world->second.waiting) by_rank.erase(comm->rank);
  if (--world->second.members == 0) worlds.erase(world);
  delete comm;
  return kNcclSuccess;
}

int group_start() {
  if (!open_group.empty()) {
    const std::lock_guard lock(mutex);
    ++found_mistakes;
  }
  return kNcclSuccess;
}

int broadcast(const void* from, void* to, std::size_t bytes, int, int root, NcclHandle comm,
              void*) {
  open_group.push_back(
      {comm, {static_cast<const std::byte*>(from), static_cast<std::byte*>(to), bytes, root}});
  return kNcclSuccess;
}

int group_end() {
  std::vector<std::pair<NcclHandle, Call>> group;
  group.swap(open_group);
  if (group.empty()) return kNcclSuccess;
  NcclHandle comm = group.front().first;
  // Only the member's own thread makes its calls: it may look at their number without the lock.
  if (group_watcher) group_watcher(comm->rank, comm->groups);
  const std::lock_guard lock(mutex);
  World& world = worlds[comm->world];
  if (next_failure != kNcclSuccess) {
    comm->error = std::exchange(next_failure, kNcclSuccess);
    return kNcclInProgress;
  }
  auto& by_rank = world.waiting[comm->groups++];
  for (const auto& [handle, call] : group) by_rank[comm->rank].push_back(call);
  if (static_cast<int>(by_rank.size()) == world.size) complete_group(world, by_rank);
  return kNcclInProgress;
}

const char* error_string(int result) { return result == kNcclRemoteError ? "remote" : "error"; }
const char* last_error(NcclHandle) { return "as the test wanted"; }

}  // namespace

std::shared_ptr<const NcclApi> fake_nccl() {
  return std::make_shared<const NcclApi>(NcclApi{get_version, get_unique_id, init, async_error,
                                                 finalize, end, end, group_start, group_end,
                                                 broadcast, error_string, last_error, true});
}

void FakeNccl::wait_for_members(bool wait) {
  const std::lock_guard lock(mutex);
  waits_for_members = wait;
}

void FakeNccl::fail_next_group(NcclResult result) {
  const std::lock_guard lock(mutex);
  next_failure = result;
}

void FakeNccl::watch_groups(std::function<void(int, std::size_t)> watcher) {
  const std::lock_guard lock(mutex);
  group_watcher = std::move(watcher);
}

void FakeNccl::fail_all(NcclResult result) {
  const std::lock_guard lock(mutex);
  failure_of_all = result;
}

int FakeNccl::mistakes() {
  const std::lock_guard lock(mutex);
  return found_mistakes;
}

int FakeNccl::alive() {
  const std::lock_guard lock(mutex);
  return living;
}

}  // namespace ckpt::testing
