#include "trial/nccl_ceiling.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/host.h"
#include "base/strings.h"
#include "collective/nccl/nccl_communicator.h"

namespace ckpt::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr double kPatienceSeconds = 120;
constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kSizes[] = {16 * kMiB, 64 * kMiB, 256 * kMiB};
constexpr std::uint64_t kSmallCall = 256;
constexpr std::uint64_t kWarmingCall = 4 * kMiB;  // as an update's first (KeptCommunicator)
constexpr int kCalls = 8;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// What rank 0 has made, on all ranks.
Result<NcclUniqueId> agree_on_key(ParameterServer& server, const NcclApi& api) {
  NcclUniqueId mine{};
  if (api.get_unique_id(&mine) != kNcclSuccess) return internal_error("ncclGetUniqueId failed");
  CKPT_ASSIGN_OR_RETURN(
      const auto keys,
      server.all_gather(std::string(mine.bytes, sizeof(mine.bytes)), kPatienceSeconds));
  std::copy(keys.front().begin(), keys.front().end(), mine.bytes);
  return mine;
}

/// A communicator with memory to work on: a place of the largest size for each rank.
class Bench {
 public:
  static Result<Bench> make(ParameterServer& server, Device& device) {
    Bench bench(server);
    const auto ranks = static_cast<std::uint64_t>(server.world_size());
    CKPT_ASSIGN_OR_RETURN(
        bench.memory_,
        device.allocate(std::end(kSizes)[-1] * ranks, concat("checkpoint-engine-", random_id())));
    bench.memory_->close_to_others();
    CKPT_ASSIGN_OR_RETURN(bench.stream_, device.make_stream());
    return bench;
  }

  Status make_communicator(std::shared_ptr<const NcclApi> api, Device& device) {
    CKPT_ASSIGN_OR_RETURN(const NcclUniqueId key, agree_on_key(*server_, *api));
    std::vector<int> members(static_cast<std::size_t>(server_->world_size()));
    std::iota(members.begin(), members.end(), 0);
    AbortSignal never;
    CKPT_ASSIGN_OR_RETURN(
        communicator_,
        NcclCommunicator::create(std::move(api), key, std::move(members), server_->rank(), device,
                                 Deadline::after_seconds(kPatienceSeconds), never));
    return Status();
  }
  void release_communicator() {
    AbortSignal never;
    communicator_->release(Deadline::after_seconds(kPatienceSeconds), never);
    communicator_.reset();
  }

  /// One call in which each of `roots` ranks sends `bytes`; returns when it is complete.
  Status call(int roots, std::uint64_t bytes) {
    CKPT_RETURN_IF_ERROR(queue(roots, bytes));
    return wait();
  }

  /// GB/s of such calls by size, of one root and of all.
  Result<json> rates() {
    json rates;
    for (const std::uint64_t bytes : kSizes) {
      CKPT_ASSIGN_OR_RETURN(rates["one_root"][format_bytes(bytes)], rate(1, bytes));
      CKPT_ASSIGN_OR_RETURN(rates["all_roots"][format_bytes(bytes)],
                            rate(server_->world_size(), bytes));
    }
    return rates;
  }

 private:
  explicit Bench(ParameterServer& server) : server_(&server) {}

  Status queue(int roots, std::uint64_t bytes) {
    std::vector<NcclBroadcast> group;
    for (int root = 0; root < roots; ++root) {
      std::byte* const place = memory_->data() + static_cast<std::uint64_t>(root) * bytes;
      group.push_back({place, place, bytes, root});
    }
    AbortSignal never;
    return communicator_->broadcast(group, stream_->native_handle(),
                                    Deadline::after_seconds(kPatienceSeconds), never);
  }

  Status wait() {
    AbortSignal never;
    CKPT_ASSIGN_OR_RETURN(const auto ticket, stream_->mark());
    return stream_->wait(ticket, Deadline::after_seconds(kPatienceSeconds), never);
  }

  Result<double> rate(int roots, std::uint64_t bytes) {
    CKPT_RETURN_IF_ERROR(call(roots, bytes));
    CKPT_RETURN_IF_ERROR(server_->barrier(kPatienceSeconds));
    const auto begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) CKPT_RETURN_IF_ERROR(queue(roots, bytes));
    CKPT_RETURN_IF_ERROR(wait());
    return static_cast<double>(bytes) * kCalls * roots / seconds_since(begin) / 1e9;
  }

  ParameterServer* server_;
  std::unique_ptr<DeviceBuffer> memory_;
  std::unique_ptr<CopyStream> stream_;
  std::unique_ptr<NcclCommunicator> communicator_;  // ends before what its calls work on
};

}  // namespace

Result<json> measure_nccl(ParameterServer& server, Device& device) {
  CKPT_ASSIGN_OR_RETURN(auto api, load_nccl());
  CKPT_ASSIGN_OR_RETURN(Bench bench, Bench::make(server, device));
  CKPT_ASSIGN_OR_RETURN(const DeviceMemory before, device.memory());
  json figures;
  // Bytes of the device that are gone since then, when all ranks have come so far.
  const auto note = [&](const char* member) -> Status {
    CKPT_RETURN_IF_ERROR(server.barrier(kPatienceSeconds));
    CKPT_ASSIGN_OR_RETURN(const DeviceMemory now, device.memory());
    figures[member] =
        static_cast<std::int64_t>(before.free_bytes) - static_cast<std::int64_t>(now.free_bytes);
    return server.barrier(kPatienceSeconds);
  };
  const auto timed = [&](const char* member, auto body) -> Status {
    const auto begin = Clock::now();
    CKPT_RETURN_IF_ERROR(body());
    figures[member] = seconds_since(begin);
    return Status();
  };
  const int all = server.world_size();
  CKPT_RETURN_IF_ERROR(
      timed("make_seconds", [&] { return bench.make_communicator(std::move(api), device); }));
  CKPT_RETURN_IF_ERROR(note("communicator_bytes"));
  CKPT_RETURN_IF_ERROR(timed("connect_seconds", [&] { return bench.call(all, kSmallCall); }));
  CKPT_RETURN_IF_ERROR(note("small_call_bytes"));
  CKPT_RETURN_IF_ERROR(bench.call(all, kWarmingCall));
  CKPT_RETURN_IF_ERROR(note("warming_call_bytes"));
  CKPT_RETURN_IF_ERROR(bench.call(all, kSizes[0]));
  CKPT_RETURN_IF_ERROR(note("large_call_bytes"));
  CKPT_ASSIGN_OR_RETURN(figures["gb_per_s"], bench.rates());
  CKPT_RETURN_IF_ERROR(note("used_bytes"));
  bench.release_communicator();
  CKPT_RETURN_IF_ERROR(note("left_bytes"));
  return figures;
}

}  // namespace ckpt::bench
