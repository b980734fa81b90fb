#include "cli/ceilings.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/bulk_copy.h"
#include "base/host.h"
#include "base/parallel.h"
#include "base/strings.h"
#include "device/copy_rate.h"
#include "memory/host_pool.h"
#include "memory/load.h"

namespace ckpt {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kChunk = 32 * kMiB;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Status touch(const HostPool& pool, ThreadPool& threads) {
  return threads.for_each(pool.pieces().size(), [&](std::size_t i) {
    std::memset(pool.pieces()[i].data, 1, pool.pieces()[i].bytes);
    return Status();
  });
}

/// One device with a buffer on it and one of pinned host memory.
struct Bench {
  std::shared_ptr<Device> device;
  std::unique_ptr<HostPool> host;
  std::unique_ptr<DeviceBuffer> memory;
  std::unique_ptr<CopyStream> stream;

  static Result<Bench> create(std::shared_ptr<Device> device, std::uint64_t bytes,
                              ThreadPool& threads) {
    Bench bench;
    bench.device = std::move(device);
    // One piece: a copy must not cross the border of two.
    CKPT_ASSIGN_OR_RETURN(bench.host, HostPool::create(bytes, {.piece_bytes = bytes}));
    CKPT_RETURN_IF_ERROR(touch(*bench.host, threads));
    CKPT_RETURN_IF_ERROR(bench.host->pin(0, *bench.device));
    CKPT_ASSIGN_OR_RETURN(
        bench.memory,
        bench.device->allocate(bytes, concat("checkpoint-engine-bench-", random_id())));
    bench.memory->close_to_others();
    CKPT_ASSIGN_OR_RETURN(bench.stream, bench.device->make_stream());
    return bench;
  }

  Result<double> upload(std::uint64_t chunk, double seconds) {
    return measure_copy_rate(*stream, memory->data(), host->pointer(0), host->bytes(), chunk,
                             seconds);
  }
  Result<double> download(double seconds) {
    return measure_copy_rate(*stream, host->pointer(0), memory->data(), host->bytes(), kChunk,
                             seconds);
  }
  /// From one half of the device's buffer to the other.
  Result<double> on_device(double seconds) {
    const std::uint64_t half = memory->size() / 2;
    return measure_copy_rate(*stream, memory->data() + half, memory->data(), half, kChunk, seconds);
  }
  Result<double> digest(double seconds) {
    std::uint64_t sum = 0, bytes = 0;
    AbortSignal never;
    const auto begin = Clock::now();
    do {
      CKPT_RETURN_IF_ERROR(stream->digest({{memory->data(), memory->size()}}, &sum));
      CKPT_ASSIGN_OR_RETURN(const auto ticket, stream->mark());
      CKPT_RETURN_IF_ERROR(stream->wait(ticket, Deadline::after_seconds(60), never));
      bytes += memory->size();
    } while (seconds_since(begin) < seconds);
    return static_cast<double>(bytes) / seconds_since(begin) / 1e9;
  }
};

Status measure_device(Bench& bench, const CeilingOptions& options, std::vector<Ceiling>& all) {
  for (const std::uint64_t chunk : {1 * kMiB, 4 * kMiB, 16 * kMiB, 32 * kMiB, 64 * kMiB}) {
    if (chunk > options.bytes) break;
    CKPT_ASSIGN_OR_RETURN(const double rate, bench.upload(chunk, options.seconds));
    all.push_back({"host to device", concat("chunks of ", format_bytes(chunk)), rate});
  }
  CKPT_ASSIGN_OR_RETURN(const double down, bench.download(options.seconds));
  all.push_back({"device to host", concat("chunks of ", format_bytes(kChunk)), down});
  CKPT_ASSIGN_OR_RETURN(const double inside, bench.on_device(options.seconds));
  all.push_back({"on the device", concat("chunks of ", format_bytes(kChunk)), inside});
  CKPT_ASSIGN_OR_RETURN(const double digest, bench.digest(options.seconds));
  all.push_back({"digest on the device", format_bytes(options.bytes), digest});
  return Status();
}

Status measure_each_alone(std::vector<Bench>& benches, const CeilingOptions& options,
                          std::vector<Ceiling>& all) {
  for (std::size_t i = 1; i < benches.size(); ++i) {
    CKPT_ASSIGN_OR_RETURN(const double rate, benches[i].upload(kChunk, options.seconds));
    all.push_back({"host to device", concat("device ", i, " alone"), rate});
  }
  return Status();
}

Status measure_all_at_once(std::vector<Bench>& benches, const CeilingOptions& options,
                           std::vector<Ceiling>& all) {
  std::vector<Result<double>> rates(benches.size(), 0.0);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < benches.size(); ++i) {
    threads.emplace_back([&, i] { rates[i] = benches[i].upload(kChunk, options.seconds); });
  }
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (const auto& rate : rates) {
    CKPT_RETURN_IF_ERROR(rate.status());
    sum += *rate;
  }
  all.push_back({"host to devices", concat(benches.size(), " at once"), sum});
  return Status();
}

/// GB/s of `body(piece)` over all pieces of a pool, which the threads share.
template <typename Body>
Result<double> measure_pieces(const HostPool& pool, ThreadPool& threads, Body body) {
  const auto begin = Clock::now();
  CKPT_RETURN_IF_ERROR(threads.for_each(pool.pieces().size(), body));
  return static_cast<double>(pool.bytes()) / seconds_since(begin) / 1e9;
}

/// GB/s of a registration of tensors in memory: copied into a fresh pool, digested, pinned.
Result<double> measure_registration(Device& device, const HostPool& from, int threads) {
  constexpr std::uint64_t kTensor = 32 * kMiB;
  std::vector<PoolTensor> tensors;
  std::vector<const std::byte*> sources;
  for (std::uint64_t at = 0; at < from.bytes(); at += kTensor) {
    tensors.push_back({concat("tensor ", at), std::min(kTensor, from.bytes() - at), at});
    sources.push_back(from.pointer(at));
  }
  CKPT_ASSIGN_OR_RETURN(const auto pool, HostPool::create(from.bytes()));
  LoadOptions options{Deadline::after_seconds(60)};
  options.pin = &device;
  options.threads = threads;
  const auto begin = Clock::now();
  CKPT_RETURN_IF_ERROR(load_memory(*pool, tensors, sources, options).status());
  return static_cast<double>(from.bytes()) / seconds_since(begin) / 1e9;
}

/// What registration is made of: memory is touched, copied into, pinned; and unpinned at its end.
Status measure_host(Device& device, const CeilingOptions& options, std::vector<Ceiling>& all) {
  std::vector<int> counts = {1, options.threads};
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  for (const int count : counts) {
    ThreadPool threads(count);
    const std::string with = concat(count, count == 1 ? " thread" : " threads");
    CKPT_ASSIGN_OR_RETURN(const auto to, HostPool::create(options.bytes));
    CKPT_ASSIGN_OR_RETURN(const auto from, HostPool::create(options.bytes));
    CKPT_RETURN_IF_ERROR(touch(*from, threads));
    const auto copy_piece = [&](std::size_t i) {
      bulk_copy(to->pieces()[i].data, from->pieces()[i].data, to->pieces()[i].bytes);
      return Status();
    };
    CKPT_ASSIGN_OR_RETURN(const double fresh, measure_pieces(*to, threads, copy_piece));
    all.push_back({"copy into fresh memory", with, fresh});
    CKPT_ASSIGN_OR_RETURN(const double again, measure_pieces(*to, threads, copy_piece));
    all.push_back({"copy into touched memory", with, again});
    double bound = fresh;
    if (device.kind() == DeviceKind::kCuda) {
      CKPT_ASSIGN_OR_RETURN(const double pin, measure_pieces(*to, threads, [&](std::size_t i) {
                              return to->pin(i, device);
                            }));
      all.push_back({"pinning", with, pin});
      const auto begin = Clock::now();
      to->unpin();
      all.push_back({"unpinning", "threads of its own",
                     static_cast<double>(options.bytes) / seconds_since(begin) / 1e9});
      bound = 1 / (1 / fresh + 1 / pin);  // one after the other
    }
    CKPT_ASSIGN_OR_RETURN(const double own, measure_registration(device, *from, count));
    all.push_back({"registration from memory", with, own, own / bound});
  }
  return Status();
}

}  // namespace

Result<std::vector<Ceiling>> measure_ceilings(const std::vector<std::shared_ptr<Device>>& devices,
                                              const CeilingOptions& options) {
  if (options.bytes < kChunk || options.bytes % (2 * kMiB) != 0) {
    return invalid_argument(concat("buffers of ", options.bytes, " bytes: at least ",
                                   format_bytes(kChunk), " and a multiple of 2 MiB are needed"));
  }
  ThreadPool threads(options.threads);
  std::vector<Ceiling> all;
  std::vector<Bench> benches;
  for (const auto& device : devices) {
    auto bench = Bench::create(device, options.bytes, threads);
    if (!bench) return bench.status().with_context(device->name());
    benches.push_back(std::move(*bench));
  }
  CKPT_RETURN_IF_ERROR(measure_device(benches.front(), options, all));
  CKPT_RETURN_IF_ERROR(measure_each_alone(benches, options, all));
  if (benches.size() > 1) CKPT_RETURN_IF_ERROR(measure_all_at_once(benches, options, all));
  benches.clear();
  CKPT_RETURN_IF_ERROR(measure_host(*devices.front(), options, all));
  return all;
}

}  // namespace ckpt
