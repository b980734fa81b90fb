#include "trial/nccl_ceiling.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/host.h"
#include "base/strings.h"
#include "collective/nccl/kept_communicator.h"

namespace ckpt::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr double kPatienceSeconds = 120;
constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kSizes[] = {16 * kMiB, 64 * kMiB, 256 * kMiB};
constexpr int kCalls = 8;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The communicator with memory to work on.
struct Bench {
  ParameterServer& server;
  NcclCommunicator& communicator;
  std::byte* data;
  CopyStream& stream;

  /// GB/s of calls in which each of `roots` ranks sends `bytes`.
  Result<double> rate(int roots, std::uint64_t bytes) {
    std::vector<NcclBroadcast> group;
    for (int root = 0; root < roots; ++root) {
      std::byte* const place = data + static_cast<std::uint64_t>(root) * bytes;
      group.push_back({place, place, bytes, root});
    }
    AbortSignal never;
    const Deadline deadline = Deadline::after_seconds(kPatienceSeconds);
    CKPT_RETURN_IF_ERROR(communicator.broadcast(group, stream.native_handle(), deadline, never));
    CKPT_RETURN_IF_ERROR(server.barrier(kPatienceSeconds));
    const auto begin = Clock::now();
    for (int call = 0; call < kCalls; ++call) {
      CKPT_RETURN_IF_ERROR(communicator.broadcast(group, stream.native_handle(), deadline, never));
    }
    CKPT_ASSIGN_OR_RETURN(const auto ticket, stream.mark());
    CKPT_RETURN_IF_ERROR(stream.wait(ticket, deadline, never));
    return static_cast<double>(bytes) * kCalls * roots / seconds_since(begin) / 1e9;
  }
};

Result<json> measure_rates(ParameterServer& server, Device& device, NcclCommunicator& nccl) {
  const auto ranks = static_cast<std::uint64_t>(server.world_size());
  CKPT_ASSIGN_OR_RETURN(
      const auto memory,
      device.allocate(std::end(kSizes)[-1] * ranks, concat("checkpoint-engine-", random_id())));
  memory->close_to_others();
  CKPT_ASSIGN_OR_RETURN(const auto stream, device.make_stream());
  Bench bench{server, nccl, memory->data(), *stream};
  json rates;
  for (const std::uint64_t bytes : kSizes) {
    CKPT_ASSIGN_OR_RETURN(rates["one_root"][format_bytes(bytes)], bench.rate(1, bytes));
    CKPT_ASSIGN_OR_RETURN(rates["all_roots"][format_bytes(bytes)],
                          bench.rate(server.world_size(), bytes));
  }
  return rates;
}

}  // namespace

Result<json> measure_nccl(ParameterServer& server, Device& device) {
  CKPT_ASSIGN_OR_RETURN(auto api, load_nccl());
  KeptCommunicator kept(std::move(api), /*released=*/true);
  CKPT_ASSIGN_OR_RETURN(const auto mine, kept.make_key());
  CKPT_ASSIGN_OR_RETURN(
      const auto keys,
      server.all_gather(std::string(reinterpret_cast<const char*>(mine.data()), mine.size()),
                        kPatienceSeconds));
  std::vector<int> members(keys.size());
  std::iota(members.begin(), members.end(), 0);
  CKPT_ASSIGN_OR_RETURN(const DeviceMemory before, device.memory());
  AbortSignal never;
  const auto begin = Clock::now();
  CKPT_RETURN_IF_ERROR(kept.make(std::as_bytes(std::span(keys.front())), std::move(members),
                                 server.rank(), device, Deadline::after_seconds(kPatienceSeconds),
                                 never));
  json figures = {{"make_seconds", seconds_since(begin)},
                  {"communicator_bytes", kept.device_bytes()}};
  CKPT_ASSIGN_OR_RETURN(figures["gb_per_s"], measure_rates(server, device, kept.get()));
  const auto less = [&](const DeviceMemory& now) {
    return static_cast<std::int64_t>(before.free_bytes) - static_cast<std::int64_t>(now.free_bytes);
  };
  CKPT_ASSIGN_OR_RETURN(const DeviceMemory used, device.memory());
  kept.update_over(Deadline::after_seconds(kPatienceSeconds), never);
  CKPT_ASSIGN_OR_RETURN(const DeviceMemory after, device.memory());
  figures["used_bytes"] = less(used);
  figures["left_bytes"] = less(after);
  CKPT_RETURN_IF_ERROR(server.barrier(kPatienceSeconds));
  return figures;
}

}  // namespace ckpt::bench
