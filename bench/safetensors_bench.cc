// How much longer a checked header of 100,000 tensors takes than simdjson's own walk over its text:
// issue target at most 2. The walk reads every key, dtype, dimension and offset and keeps nothing.
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <simdjson.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "base/strings.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/safetensors_writer.h"

namespace ckpt {
namespace {

namespace od = simdjson::ondemand;
constexpr int kTensors = 100'000;

struct Header {
  std::string json;
  std::uint64_t data_bytes = 0;
};

const Header& header_of_a_large_model() {
  static const Header header = [] {
    Header made;
    std::vector<TensorInfo> tensors;
    for (int i = 0; i < kTensors; ++i) {
      const std::string name = concat("model.layers.", i / 1600, ".mlp.experts.", i % 1600 / 4,
                                      ".gate_proj.weight", i % 4);
      tensors.push_back(make_tensor_info(name, DType::kBF16, {2048, 7168}).value());
      made.data_bytes += tensors.back().bytes;
    }
    made.json = encode_safetensors_header(tensors, {}).value().substr(kSafetensorsPrefixBytes);
    return made;
  }();
  return header;
}

std::uint64_t walk(const Header& header) {
  const simdjson::padded_string text(header.json);
  od::parser parser;
  od::document document = parser.iterate(text);
  std::uint64_t sum = 0;
  for (auto tensor : document.get_object()) {
    sum += std::string_view(tensor.unescaped_key()).size();
    for (auto field : tensor.value().get_object()) {
      const std::string_view key = field.unescaped_key();
      if (key == "dtype") {
        sum += std::string_view(field.value().get_string()).size();
      } else {
        for (auto number : field.value().get_array()) sum += std::uint64_t(number.get_uint64());
      }
    }
  }
  return sum;
}

Result<SafetensorsHeader> parse(const Header& header) {
  return parse_safetensors_header(std::as_bytes(std::span(header.json)), header.data_bytes);
}

void simdjson_walk(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(walk(header_of_a_large_model()));
}
BENCHMARK(simdjson_walk)->Unit(benchmark::kMillisecond);

void safetensors_header(benchmark::State& state) {
  for (auto _ : state) {
    if (!parse(header_of_a_large_model()).is_ok()) state.SkipWithError("refused");
  }
}
BENCHMARK(safetensors_header)->Unit(benchmark::kMillisecond);

template <typename Call>
double seconds_with_cold_memory(Call call) {
  ::malloc_trim(0);
  const auto start = std::chrono::steady_clock::now();
  const auto result = call();
  const auto end = std::chrono::steady_clock::now();
  benchmark::DoNotOptimize(&result);
  return std::chrono::duration<double>(end - start).count();
}

/// The fastest of many, in turn, so that a busy machine does not decide, and both in memory fresh
/// from the system, as in a process that reads its checkpoint once. The result is freed outside.
void ratio_to_simdjson_walk(benchmark::State& state) {
  const Header& header = header_of_a_large_model();
  double walked = std::numeric_limits<double>::infinity(), parsed = walked;
  for (auto _ : state) {
    walked = std::min(walked, seconds_with_cold_memory([&] { return walk(header); }));
    parsed = std::min(parsed, seconds_with_cold_memory([&] { return parse(header); }));
  }
  state.counters["walk_ms"] = walked * 1e3;
  state.counters["parse_ms"] = parsed * 1e3;
  state.counters["ratio"] = parsed / walked;
}
BENCHMARK(ratio_to_simdjson_walk)->Unit(benchmark::kMillisecond)->Iterations(50);

}  // namespace
}  // namespace ckpt
