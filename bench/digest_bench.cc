// The digest alone, fused with the copy, and plain copies of the same bytes, in one run. The
// buffers are far larger than any cache.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "base/bulk_copy.h"
#include "checkpoint/digest.h"
#include "checkpoint/digest_paths.h"

namespace ckpt {
namespace {

constexpr std::size_t kBytes = 256u << 20;
constexpr std::size_t kPiece = 32u << 20;  // what lanes hand over at once

struct Buffers {
  std::vector<std::byte> from = std::vector<std::byte>(kBytes + kDigestLine, std::byte{3});
  std::vector<std::byte> to = std::vector<std::byte>(kBytes + kDigestLine, std::byte{5});

  static std::byte* line(std::vector<std::byte>& buffer) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
    return buffer.data() + (kDigestLine - address % kDigestLine) % kDigestLine;
  }
};

Buffers& buffers() {
  static Buffers both;
  return both;
}

// `work(to, from, bytes, first_word)` for every piece of the buffers.
template <typename Work>
void over_pieces(benchmark::State& state, Work work) {
  std::byte* from = Buffers::line(buffers().from);
  std::byte* to = Buffers::line(buffers().to);
  for (auto _ : state) {
    for (std::size_t at = 0; at < kBytes; at += kPiece) {
      benchmark::DoNotOptimize(work(to + at, from + at, kPiece, at / 8));
    }
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * kBytes);
}

void register_all() {
  const auto add = [](const std::string& name, auto work) {
    benchmark::RegisterBenchmark(name.c_str(),
                                 [work](benchmark::State& state) { over_pieces(state, work); });
  };
  add("memcpy", [](std::byte* to, const std::byte* from, std::size_t bytes, std::uint64_t) {
    return std::memcpy(to, from, bytes);
  });
  add("bulk_copy", [](std::byte* to, const std::byte* from, std::size_t bytes, std::uint64_t) {
    bulk_copy(to, from, bytes);
    return to;
  });
  add("digest_sum", [](std::byte*, const std::byte* from, std::size_t bytes, std::uint64_t first) {
    return digest_sum(from, bytes, first);
  });
  add("digest_copy", [](std::byte* to, const std::byte* from, std::size_t bytes,
                        std::uint64_t first) { return digest_copy(to, from, bytes, first); });
  add("digest_copy/odd_destination",
      [](std::byte* to, const std::byte* from, std::size_t bytes, std::uint64_t first) {
        return digest_copy(to + 3, from, bytes, first);
      });
  for (const DigestPath& path : digest_paths()) {
    const auto kernel = [](DigestKernel run) {
      return [run](std::byte* to, const std::byte* from, std::size_t bytes, std::uint64_t first) {
        return run(to, from, bytes / kDigestLine, first);
      };
    };
    add(std::string(path.name) + "/sum", kernel(path.sum));
    add(std::string(path.name) + "/copy", kernel(path.copy));
    add(std::string(path.name) + "/stream", kernel(path.stream));
  }
}

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  ckpt::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
