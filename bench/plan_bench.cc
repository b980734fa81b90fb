// Planning a mixture-of-experts checkpoint of many tensors on 256 ranks of 32 hosts: what every
// participant computes before an update. The argument is the number of tensors.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "base/strings.h"
#include "plan/plan.h"
#include "plan/schedule.h"

namespace {

using namespace ckpt;

constexpr int kWorldSize = 256;
constexpr int kRanksPerHost = 8;

/// Experts in FP8: three matrices with their scales each, dealt to the ranks expert by expert.
Catalog make_catalog(int tensor_count) {
  constexpr std::int64_t kHidden = 7168, kInner = 2048, kBlock = 128;
  std::vector<std::vector<TensorInfo>> held(kWorldSize);
  for (int i = 0; i < tensor_count; ++i) {
    const int expert = i / 6;
    const int matrix = i % 6 / 2;
    const bool scale = i % 2 == 1;
    static constexpr const char* kMatrices[] = {"gate_proj", "up_proj", "down_proj"};
    std::string name = concat("model.layers.", expert / 384, ".mlp.experts.", expert % 384, ".",
                              kMatrices[matrix], scale ? ".weight_scale_inv" : ".weight");
    std::vector<std::int64_t> shape =
        scale ? std::vector{kInner / kBlock, kHidden / kBlock} : std::vector{kInner, kHidden};
    held[expert % kWorldSize].push_back(
        *make_tensor_info(std::move(name), scale ? DType::kF32 : DType::kF8E4M3, shape));
  }
  auto metas = std::make_shared<Metas>();
  for (int rank = 0; rank < kWorldSize; ++rank) {
    InstanceData instance;
    instance.rank = rank;
    std::uint64_t offset = 0;
    for (const TensorInfo& tensor : held[rank]) {
      instance.offsets.push_back(offset);
      instance.digests.push_back(0);
      offset += (tensor.bytes + kRingAlignment - 1) / kRingAlignment * kRingAlignment;
    }
    auto layout = std::make_shared<Layout>(Layout::make(std::move(held[rank])));
    instance.layout_hash = layout->hash;
    metas->ranks.push_back({std::move(layout), std::move(instance)});
  }
  return *Catalog::build(std::move(metas));
}

std::vector<PlanRank> make_ranks() {
  std::vector<PlanRank> ranks;
  for (int rank = 0; rank < kWorldSize; ++rank) ranks.push_back({rank / kRanksPerHost, true});
  return ranks;
}

void make_plan_bench(benchmark::State& state) {
  const Catalog catalog = make_catalog(static_cast<int>(state.range(0)));
  const std::vector<PlanRank> ranks = make_ranks();
  std::size_t buckets = 0, parts = 0, stops = 0;
  for (auto _ : state) {
    const Result<Plan> plan = make_plan(catalog, ranks, PlanOptions{});
    buckets = plan->buckets.size();
    parts = plan->parts.size();
    stops = plan->stops.size();
  }
  state.counters["buckets"] = static_cast<double>(buckets);
  state.counters["parts"] = static_cast<double>(parts);
  state.counters["stops"] = static_cast<double>(stops);
}
BENCHMARK(make_plan_bench)
    ->Name("make_plan")
    ->Arg(50'000)
    ->Arg(100'000)
    ->Arg(200'000)
    ->Arg(400'000)
    ->Unit(benchmark::kMillisecond);

/// Another job's owners fill hosts of 8 ranks with 4 network devices: so many buckets, so many
/// hosts.
void p2p_plan_bench(benchmark::State& state) {
  constexpr int kOwners = 16;
  const int targets = 8 * static_cast<int>(state.range(1));
  constexpr std::int64_t kBytes = 1 << 20;
  auto metas = std::make_shared<Metas>();
  std::vector<PlanRank> ranks;
  std::vector<std::vector<TensorInfo>> held(targets + kOwners);
  for (int i = 0; i < static_cast<int>(state.range(0)); ++i) {
    const TensorInfo tensor =
        *make_tensor_info(concat("model.layers.", i, ".weight"), DType::kU8, {kBytes});
    // Two replicas of each, on two hosts, on sets that overlap.
    held[targets + i % kOwners].push_back(tensor);
    held[targets + (i + kOwners / 2 + i / kOwners % 2) % kOwners].push_back(tensor);
  }
  for (int rank = 0; rank < targets + kOwners; ++rank) {
    const bool target = rank < targets;
    ranks.push_back({rank / 8, target, rank % 3 == 0 ? 200.0 : 400.0, rank / 2 % 4});
    InstanceData instance;
    instance.rank = rank;
    for (std::size_t i = 0; i < held[rank].size(); ++i) {
      instance.offsets.push_back(i * kBytes);
      instance.digests.push_back(0);
    }
    auto layout = std::make_shared<Layout>(Layout::make(std::move(held[rank])));
    instance.layout_hash = layout->hash;
    metas->ranks.push_back({std::move(layout), std::move(instance)});
  }
  const Catalog catalog = *Catalog::build(std::move(metas));
  PlanOptions options;
  options.bucket_bytes = options.chunk_bytes = kBytes;
  options.ring_bytes = 2 * kBytes;
  std::size_t buckets = 0;
  for (auto _ : state) {
    const Result<Plan> plan = make_plan(catalog, ranks, options);
    buckets = plan->buckets.size();
  }
  state.counters["buckets"] = static_cast<double>(buckets);
}
BENCHMARK(p2p_plan_bench)
    ->Name("p2p_plan")
    ->Args({100'000, 1})
    ->Args({100'000, 4})
    ->Unit(benchmark::kMillisecond);

void fingerprint_bench(benchmark::State& state) {
  const Catalog catalog = make_catalog(static_cast<int>(state.range(0)));
  const Plan plan = *make_plan(catalog, make_ranks(), PlanOptions{});
  for (auto _ : state) benchmark::DoNotOptimize(plan.fingerprint());
}
BENCHMARK(fingerprint_bench)->Name("fingerprint")->Arg(200'000)->Unit(benchmark::kMillisecond);

void make_schedule_bench(benchmark::State& state) {
  const Catalog catalog = make_catalog(static_cast<int>(state.range(0)));
  const std::vector<PlanRank> ranks = make_ranks();
  PlanOptions options;
  options.sharing = static_cast<RingSharing>(state.range(1));
  const Plan plan = *make_plan(catalog, ranks, options);
  std::size_t chunks = 0, pulls = 0;
  for (auto _ : state) {
    const Schedule schedule = make_schedule(plan, ranks, 77);
    chunks = schedule.fill.size() + schedule.receive.size();
    pulls = schedule.pull.size();
  }
  state.counters["chunks"] = static_cast<double>(chunks);
  state.counters["pulls"] = static_cast<double>(pulls);
}
BENCHMARK(make_schedule_bench)
    ->Name("make_schedule")
    ->ArgNames({"tensors", "per_rank"})
    ->Args({200'000, 0})
    ->Args({200'000, 1})
    ->Unit(benchmark::kMillisecond);

}  // namespace
