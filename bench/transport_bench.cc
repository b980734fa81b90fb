// Reads through the ucx transport from another process of this host, beside memcpy in the same run:
//   transport_bench [--benchmark_filter=...]
// The owner is this program, started anew. On a machine of two cores nothing else may run.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "transport/testing/owner.h"
#include "transport/ucx/ucx_transport.h"

namespace ckpt {
namespace {

constexpr std::uint64_t kLargest = 256 << 20;

std::shared_ptr<Transport> make_transport(const char* label) {
  auto transport = make_ucx_transport({.label = label});
  if (!transport.is_ok()) {
    std::fprintf(stderr, "%s\n", transport.status().to_string().c_str());
    std::exit(1);
  }
  return std::move(transport).value();
}

/// An owner with one region, and a reader that is connected to it.
struct Link {
  Link() { owner->add_region(kLargest, 1); }

  std::unique_ptr<testing::OwnerUnderTest> owner = testing::start_owner_process("ucx");
  std::shared_ptr<Transport> reader = make_transport("reader");
  std::vector<std::byte> destination = std::vector<std::byte>(kLargest);
  std::unique_ptr<Peer> peer;
};

Link& link() {
  static Link link;
  if (!link.peer) {
    link.peer =
        link.reader->connect(link.owner->descriptor(), {}, Deadline::after_seconds(10)).value();
  }
  return link;
}

void finish(benchmark::State& state, std::uint64_t bytes) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

void read(benchmark::State& state) {
  const auto bytes = static_cast<std::uint64_t>(state.range(0));
  const ReadRange range{1, 0, link().destination.data(), bytes};
  for (auto _ : state) {
    const Deadline deadline = Deadline::after_seconds(30);
    const Status status = link().reader->read(*link().peer, {&range, 1}, deadline)->wait(deadline);
    if (!status.is_ok()) state.SkipWithError(status.to_string().c_str());
  }
  finish(state, bytes);
}
BENCHMARK(read)->RangeMultiplier(16)->Range(4 << 10, kLargest)->UseRealTime();

void read_tiny_ranges(benchmark::State& state) {
  std::vector<ReadRange> ranges;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    ranges.push_back({1, i * 1000, link().destination.data() + i * 128, 100});
  }
  for (auto _ : state) {
    const Deadline deadline = Deadline::after_seconds(30);
    const Status status = link().reader->read(*link().peer, ranges, deadline)->wait(deadline);
    if (!status.is_ok()) state.SkipWithError(status.to_string().c_str());
  }
  finish(state, 10000 * 100);
}
BENCHMARK(read_tiny_ranges)->UseRealTime();

void copy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  static const std::vector<std::byte> source(kLargest, std::byte{1});
  for (auto _ : state) {
    std::memcpy(link().destination.data(), source.data(), bytes);
    benchmark::ClobberMemory();
  }
  finish(state, bytes);
}
BENCHMARK(copy)->RangeMultiplier(16)->Range(4 << 10, kLargest)->UseRealTime();

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  if (!ckpt::testing::owner_process_backend(argc, argv).empty()) {
    return ckpt::testing::run_owner_process(ckpt::make_transport("owner"));
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
