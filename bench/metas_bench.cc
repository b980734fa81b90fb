// What one rank pays for the metas of a large job: 200,000 tensors of 256 ranks.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>

#include "checkpoint/catalog.h"
#include "checkpoint/metas.h"
#include "checkpoint/model_shapes.h"
#include "checkpoint/order.h"
#include "checkpoint/split.h"

namespace ckpt {
namespace {

constexpr std::size_t kTensors = 200'000;
constexpr int kRanks = 256;

// DeepSeek-V3.1 with more layers than it has, cut to size.
const std::vector<TensorInfo>& model() {
  static const std::vector<TensorInfo> tensors = [] {
    auto all = *model_tensors("deepseek-v3.1", {.layers = 140});
    all.resize(kTensors);
    return all;
  }();
  return tensors;
}

struct Encoded {
  std::vector<std::vector<std::byte>> layouts;
  std::vector<std::vector<std::byte>> instances;

  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const auto& part : layouts) sum += part.size();
    for (const auto& part : instances) sum += part.size();
    return sum;
  }
};

Metas make_metas() {
  std::mt19937_64 random(1);
  Metas metas;
  metas.checkpoint_name = "bench";
  const auto shares = split_by_bytes(model(), kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<TensorInfo> tensors;
    for (const std::uint32_t index : shares[rank]) tensors.push_back(model()[index]);
    RankMetas entry;
    entry.layout = std::make_shared<Layout>(Layout::make(std::move(tensors)));
    entry.instance.rank = rank;
    entry.instance.layout_hash = entry.layout->hash;
    entry.instance.transport_descriptor.resize(200);
    std::uint64_t offset = 0;
    for (const TensorInfo& tensor : entry.layout->tensors) {
      entry.instance.offsets.push_back(offset);
      entry.instance.digests.push_back(random());
      offset += (tensor.bytes + 255) / 256 * 256;
    }
    metas.ranks.push_back(std::move(entry));
  }
  return metas;
}

const Metas& metas() {
  static const Metas made = make_metas();
  return made;
}

Encoded encode(const Metas& all) {
  Encoded out;
  for (const RankMetas& rank : all.ranks) {
    out.layouts.push_back(encode_layout(*rank.layout));
    out.instances.push_back(encode_instance_data(rank.instance));
  }
  return out;
}

Metas decode(const Encoded& encoded) {
  Metas all;
  for (std::size_t rank = 0; rank < encoded.layouts.size(); ++rank) {
    all.ranks.push_back({std::make_shared<Layout>(*decode_layout(encoded.layouts[rank])),
                         *decode_instance_data(encoded.instances[rank])});
  }
  return all;
}

void encode_all(benchmark::State& state) {
  std::size_t bytes = 0;
  metas();
  for (auto _ : state) bytes = encode(metas()).bytes();
  state.counters["bytes"] = static_cast<double>(bytes);
}

void decode_all(benchmark::State& state) {
  const Encoded encoded = encode(metas());
  for (auto _ : state) benchmark::DoNotOptimize(decode(encoded));
}

void build_catalog(benchmark::State& state) {
  const auto shared = std::make_shared<Metas>(metas());
  for (auto _ : state) benchmark::DoNotOptimize(Catalog::build(shared));
}

void encode_decode_and_build(benchmark::State& state) {
  metas();
  for (auto _ : state) {
    const auto decoded = std::make_shared<Metas>(decode(encode(metas())));
    benchmark::DoNotOptimize(Catalog::build(decoded));
  }
}

void make_layouts(benchmark::State& state) {
  for (auto _ : state) {
    for (const RankMetas& rank : metas().ranks) {
      benchmark::DoNotOptimize(Layout::make(rank.layout->tensors));
    }
  }
}

void plan_order_shuffled(benchmark::State& state) {
  std::vector<TensorInfo> shuffled = model();
  std::mt19937_64 random(2);
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  for (auto _ : state) benchmark::DoNotOptimize(plan_order(shuffled));
}

void plan_order_as_given(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(plan_order(model()));
}

void split_over_ranks(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(split_by_bytes(model(), kRanks));
}

BENCHMARK(encode_all)->Unit(benchmark::kMillisecond);
BENCHMARK(decode_all)->Unit(benchmark::kMillisecond);
BENCHMARK(build_catalog)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_decode_and_build)->Unit(benchmark::kMillisecond);
BENCHMARK(make_layouts)->Unit(benchmark::kMillisecond);
BENCHMARK(plan_order_shuffled)->Unit(benchmark::kMillisecond);
BENCHMARK(plan_order_as_given)->Unit(benchmark::kMillisecond);
BENCHMARK(split_over_ranks)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ckpt

BENCHMARK_MAIN();
