// What registration costs beside its two parts: the plain read and the digest.
//
//   registration_bench [--size 1GiB] [--threads N] [--rounds 5] [--dir PATH] [--target 1.15]
//
// Writes a checkpoint's worth of files, reads them once so that they are in the page cache, and
// measures in turn: memcpy into touched memory, pread into fresh huge pages, the digest over
// memory, and load_files, which does both in one pass. Exit code 1 when registration takes more
// than `target` times the sum of pread and digest.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>

#include "base/fd.h"
#include "base/host.h"
#include "base/parallel.h"
#include "base/strings.h"
#include "checkpoint/digest.h"
#include "memory/load.h"

namespace ckpt {
namespace {

constexpr std::uint64_t kFileBytes = 256 << 20;
constexpr std::uint64_t kTensorBytes = 16 << 20;
constexpr std::uint64_t kHeaderBytes = 1000;  // puts the data at an odd place, as headers do
constexpr std::uint64_t kWindowBytes = 8 << 20;

struct Settings {
  std::uint64_t bytes = 1 << 30;
  int threads = std::min(16, available_processors());
  int rounds = 5;
  std::string folder = std::filesystem::temp_directory_path();
  double target = 1.15;
};

Result<Settings> parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    const std::string value = argv[i + 1];
    if (option == "--size") {
      CKPT_ASSIGN_OR_RETURN(settings.bytes, parse_bytes(value));
    } else if (option == "--threads") {
      CKPT_ASSIGN_OR_RETURN(const auto threads, parse_int(value));
      settings.threads = static_cast<int>(threads);
    } else if (option == "--rounds") {
      CKPT_ASSIGN_OR_RETURN(const auto rounds, parse_int(value));
      settings.rounds = static_cast<int>(rounds);
    } else if (option == "--dir") {
      settings.folder = value;
    } else if (option == "--target") {
      settings.target = std::strtod(value.c_str(), nullptr);
    } else {
      return invalid_argument(concat("unknown option ", option));
    }
  }
  if (argc % 2 == 0) return invalid_argument(concat(argv[argc - 1], " has no value"));
  settings.bytes = std::max(settings.bytes / kTensorBytes, std::uint64_t{1}) * kTensorBytes;
  return settings;
}

/// Files of a checkpoint, deleted at the end.
class Checkpoint {
 public:
  explicit Checkpoint(const Settings& settings)
      : folder_(concat(settings.folder, "/ckpt-registration-bench-", random_id())) {
    std::filesystem::create_directory(folder_);
    std::uint64_t file_offset = kFileBytes;
    for (std::uint64_t at = 0; at < settings.bytes; at += kTensorBytes) {
      if (file_offset >= kFileBytes) {
        paths.push_back(concat(folder_.string(), "/model-", paths.size(), ".safetensors"));
        file_offset = kHeaderBytes;
      }
      tensors.push_back({concat("tensor.", tensors.size()), kTensorBytes, at});
      sources.push_back({paths.back(), file_offset});
      file_offset += kTensorBytes;
    }
  }
  ~Checkpoint() { std::filesystem::remove_all(folder_); }

  Status write() const {
    std::vector<std::uint64_t> words(kTensorBytes / 8);
    UniqueFd fd;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].file_offset == kHeaderBytes) {
        fd.reset(::open(sources[i].path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
      }
      for (std::size_t w = 0; w < words.size(); ++w) words[w] = (w + i) * 0x9E3779B97F4A7C15u;
      const ssize_t n = ::pwrite(fd.get(), words.data(), kTensorBytes,
                                 static_cast<off_t>(sources[i].file_offset));
      if (n != static_cast<ssize_t>(kTensorBytes)) {
        return errno_error(concat("writing ", sources[i].path), errno);
      }
    }
    return Status::ok();
  }

  std::vector<std::string> paths;
  std::vector<PoolTensor> tensors;
  std::vector<FileSource> sources;

 private:
  const std::filesystem::path folder_;
};

double seconds(const std::function<Status()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  const Status status = body();
  if (!status.is_ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    std::exit(2);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class Bench {
 public:
  Bench(const Settings& settings, const Checkpoint& checkpoint)
      : settings_(settings), checkpoint_(checkpoint), threads_(settings.threads) {
    for (const FileSource& source : checkpoint.sources) {
      fds_.emplace_back(::open(source.path.c_str(), O_RDONLY | O_CLOEXEC));
    }
  }

  /// Whole windows of the pool by all threads.
  Status windows(const std::function<Status(std::uint64_t begin, std::uint64_t bytes)>& body) {
    return threads_.for_each((settings_.bytes + kWindowBytes - 1) / kWindowBytes,
                             [&](std::size_t i) {
                               const std::uint64_t begin = i * kWindowBytes;
                               return body(begin, std::min(kWindowBytes, settings_.bytes - begin));
                             });
  }

  double plain_read() {
    auto pool = fresh_pool();
    return seconds([&] {
      return windows([&](std::uint64_t begin, std::uint64_t bytes) -> Status {
        const std::size_t tensor = begin / kTensorBytes;
        const std::uint64_t at =
            checkpoint_.sources[tensor].file_offset + begin - tensor * kTensorBytes;
        const ssize_t n =
            ::pread(fds_[tensor].get(), pool->pointer(begin), bytes, static_cast<off_t>(at));
        return n == static_cast<ssize_t>(bytes) ? Status::ok() : io_error("short read");
      });
    });
  }

  double registration() {
    std::unique_ptr<HostPool> pool;
    return seconds([&]() -> Status {
      CKPT_ASSIGN_OR_RETURN(pool, HostPool::create(settings_.bytes));
      return load_files(*pool, checkpoint_.tensors, checkpoint_.sources,
                        {.deadline = Deadline::after_seconds(600), .threads = settings_.threads})
          .status();
    });
  }

  double digest_alone(const HostPool& touched) {
    std::atomic<std::uint64_t> sum{0};
    return seconds([&] {
      return windows([&](std::uint64_t begin, std::uint64_t bytes) {
        sum += digest_sum(touched.pointer(begin), bytes, begin / 8);
        return Status::ok();
      });
    });
  }

  double plain_memcpy(const HostPool& to, const HostPool& from) {
    return seconds([&] {
      return windows([&](std::uint64_t begin, std::uint64_t bytes) {
        std::memcpy(to.pointer(begin), from.pointer(begin), bytes);
        return Status::ok();
      });
    });
  }

  double from_memory(const HostPool& from) {
    std::vector<const std::byte*> sources;
    for (const PoolTensor& tensor : checkpoint_.tensors) {
      sources.push_back(from.pointer(tensor.pool_offset));
    }
    std::unique_ptr<HostPool> pool;
    return seconds([&]() -> Status {
      CKPT_ASSIGN_OR_RETURN(pool, HostPool::create(settings_.bytes));
      return load_memory(*pool, checkpoint_.tensors, sources,
                         {.deadline = Deadline::after_seconds(600), .threads = settings_.threads})
          .status();
    });
  }

  std::unique_ptr<HostPool> fresh_pool() const {
    auto pool = HostPool::create(settings_.bytes);
    if (pool.is_ok()) return std::move(pool).value();
    std::fprintf(stderr, "%s\n", pool.status().to_string().c_str());
    std::exit(2);
  }
  std::unique_ptr<HostPool> touched_pool() const {
    auto pool = fresh_pool();
    std::memset(pool->pointer(0), 1, settings_.bytes);
    return pool;
  }

 private:
  const Settings& settings_;
  const Checkpoint& checkpoint_;
  ThreadPool threads_;
  std::vector<UniqueFd> fds_;
};

void print(const char* what, double best, std::uint64_t bytes) {
  std::printf("%-44s %8.3f s %7.2f GB/s\n", what, best, static_cast<double>(bytes) / best / 1e9);
}

int run(const Settings& settings) {
  const Checkpoint checkpoint(settings);
  if (const Status status = checkpoint.write(); !status.is_ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 2;
  }
  Bench bench(settings, checkpoint);
  const auto from = bench.touched_pool();
  const auto to = bench.touched_pool();
  double copy = 1e9, read = 1e9, digest = 1e9, files = 1e9, memory = 1e9;
  bench.plain_read();  // brings the files into the page cache, where they are not yet
  for (int round = 0; round < settings.rounds; ++round) {
    copy = std::min(copy, bench.plain_memcpy(*to, *from));
    read = std::min(read, bench.plain_read());
    digest = std::min(digest, bench.digest_alone(*from));
    files = std::min(files, bench.registration());
    memory = std::min(memory, bench.from_memory(*from));
  }
  std::printf("%s in %zu files, %d threads, digest %s, best of %d\n",
              format_bytes(settings.bytes).c_str(), checkpoint.paths.size(), settings.threads,
              digest_code_path(), settings.rounds);
  print("memcpy into touched memory", copy, settings.bytes);
  print("pread into fresh huge pages", read, settings.bytes);
  print("digest alone", digest, settings.bytes);
  print("registration of files (read and digest)", files, settings.bytes);
  print("registration of memory (copy and digest)", memory, settings.bytes);
  const double ratio = files / (read + digest);
  std::printf("registration of files / (pread + digest)     %8.2f (target: at most %.2f)\n", ratio,
              settings.target);
  std::printf("registration of files / memcpy               %8.2f\n", files / copy);
  std::printf("registration of memory / memcpy              %8.2f\n", memory / copy);
  return ratio <= settings.target ? 0 : 1;
}

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  const auto settings = ckpt::parse(argc, argv);
  if (settings.is_ok()) return ckpt::run(*settings);
  std::fprintf(stderr, "%s\n", settings.status().to_string().c_str());
  return 2;
}
