// What agreement costs: ranks in threads of one process, a hub, real sockets of the loopback
// interface.
#include <benchmark/benchmark.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "base/abort_signal.h"
#include "control/control_client.h"
#include "control/hub.h"

namespace ckpt {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(30s); }

class Job {
 public:
  explicit Job(int size) : clients_(static_cast<std::size_t>(size)), all_(clients_.size()) {
    std::iota(all_.begin(), all_.end(), 0);
    HubOptions options;
    options.bind_host = "127.0.0.1";
    hub_ = Hub::start(options).value();
    on_all([this](int rank) {
      JoinOptions join;
      join.hub = hub_->address();
      join.rank = rank;
      join.world_size = static_cast<int>(all_.size());
      join.job = "bench";
      clients_[static_cast<std::size_t>(rank)] = ControlClient::join(join, 30s).value();
    });
  }

  void on_all(const std::function<void(int)>& body) {
    std::vector<std::jthread> threads;
    for (const int rank : all_) threads.emplace_back([&body, rank] { body(rank); });
  }
  ControlClient& operator[](int rank) { return *clients_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& all() const { return all_; }

 private:
  std::unique_ptr<Hub> hub_;
  std::vector<std::unique_ptr<ControlClient>> clients_;
  std::vector<int> all_;
};

/// Runs `call` on all ranks once for each iteration of `state`, and stops at the first failure.
void repeat_on_all(benchmark::State& state, Job& job, const std::function<Status(int)>& call) {
  std::atomic<bool> going{true};
  std::barrier turn(static_cast<std::ptrdiff_t>(job.all().size()) + 1);
  std::jthread ranks([&] {
    job.on_all([&](int rank) {
      for (turn.arrive_and_wait(); going; turn.arrive_and_wait()) {
        if (const Status status = call(rank); !status.is_ok()) {
          std::fprintf(stderr, "%s\n", status.to_string().c_str());
        }
        turn.arrive_and_wait();
      }
    });
  });
  for (auto _ : state) {
    turn.arrive_and_wait();
    turn.arrive_and_wait();
  }
  going = false;
  turn.arrive_and_wait();
}

void barrier_of_local_ranks(benchmark::State& state) {
  Job job(static_cast<int>(state.range(0)));
  repeat_on_all(state, job,
                [&](int rank) { return job[rank].barrier("bench", job.all(), soon()); });
}
BENCHMARK(barrier_of_local_ranks)
    ->Arg(2)
    ->Arg(8)
    ->Arg(32)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// Each rank gives so many KiB, as instance data of metas are.
void all_gather_of_8_ranks(benchmark::State& state) {
  Job job(8);
  const std::vector<std::byte> mine(static_cast<std::size_t>(state.range(0)) << 10);
  repeat_on_all(state, job, [&](int rank) {
    return job[rank].all_gather("bench", job.all(), mine, soon()).status();
  });
}
BENCHMARK(all_gather_of_8_ranks)
    ->Arg(1)
    ->Arg(256)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// From rank 0's abort until the last of 8 ranks has its signal.
void abort_reaches_8_ranks(benchmark::State& state) {
  Job job(8);
  for (auto _ : state) {
    std::vector<std::shared_ptr<AbortSignal>> signals(job.all().size());
    std::atomic<std::uint64_t> epoch{0};
    job.on_all([&](int rank) {
      epoch = job[rank].begin_update("bench", job.all(), soon()).value();
      auto& signal = signals[static_cast<std::size_t>(rank)];
      signal = std::make_shared<AbortSignal>();
      job[rank].watch(epoch, signal);
    });
    const auto begin = std::chrono::steady_clock::now();
    job[0].abort(epoch, aborted("bench"));
    for (const auto& signal : signals) {
      if (!*wait_readable(signal->fd(), soon())) state.SkipWithError("an abort was not heard");
    }
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    for (const int rank : job.all()) job[rank].end_update(epoch);
  }
}
BENCHMARK(abort_reaches_8_ranks)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ckpt
