#include "memory/load_windows.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>

#include "base/parallel.h"
#include "base/strings.h"

namespace ckpt {
namespace {

constexpr std::uint64_t kWindowBytes = 8 << 20;
// Read, then digested out of the cache. Measured on a processor with 1 MiB of second-level cache:
// the same from 512 KiB to 2 MiB, slower below, where system calls show.
constexpr std::uint64_t kBlockBytes = 512 << 10;
constexpr int kMostThreads = 16;

struct Window {
  std::uint64_t begin, end;  // pool offsets
  std::size_t piece;
};

class Loading {
 public:
  Loading(HostPool& pool, std::span<const PoolTensor> tensors, const FillBlock& fill,
          const LoadOptions& options)
      : pool_(pool),
        tensors_(tensors),
        fill_(fill),
        options_(options),
        left_(pool.pieces().size()) {}

  Result<TensorSums> run() {
    CKPT_RETURN_IF_ERROR(sort_tensors());
    cut_windows();
    int threads =
        options_.threads > 0 ? options_.threads : std::min(available_processors(), kMostThreads);
    threads = std::min<int>(threads, static_cast<int>(std::max<std::size_t>(1, windows_.size())));
    ThreadPool workers(threads);
    CKPT_RETURN_IF_ERROR(
        workers.for_each(windows_.size(), [&](std::size_t i) { return load(windows_[i]); }));
    if (options_.progress) options_.progress(done_);
    return std::move(sums_);
  }

 private:
  Status sort_tensors();
  void cut_windows();
  Status load(const Window& window);
  Status load_part(std::size_t tensor, std::uint64_t begin, std::uint64_t end);
  Status check_waits() const;
  void report(std::uint64_t bytes);

  HostPool& pool_;
  const std::span<const PoolTensor> tensors_;
  const FillBlock& fill_;
  const LoadOptions& options_;
  std::vector<std::size_t> order_;  // of the tensors that have bytes, by pool offset
  std::vector<Window> windows_;
  std::vector<std::atomic<std::size_t>> left_;  // windows of each piece that are not full yet
  TensorSums sums_;
  std::atomic<std::uint64_t> done_{0};
  std::mutex progress_mutex_;
};

Status Loading::sort_tensors() {
  std::vector<std::uint64_t> bytes;
  bytes.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const PoolTensor& tensor = tensors_[i];
    bytes.push_back(tensor.bytes);
    if (tensor.bytes == 0) continue;
    order_.push_back(i);
    if (Status status = pool_.check_range(tensor.pool_offset, tensor.bytes); !status.is_ok()) {
      return status.with_context(concat("tensor ", quoted(tensor.name)));
    }
  }
  std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
    return tensors_[a].pool_offset < tensors_[b].pool_offset;
  });
  for (std::size_t i = 1; i < order_.size(); ++i) {
    const PoolTensor& before = tensors_[order_[i - 1]];
    const PoolTensor& after = tensors_[order_[i]];
    if (before.pool_offset + before.bytes > after.pool_offset) {
      return invalid_argument(concat("tensors ", quoted(before.name), " and ", quoted(after.name),
                                     " overlap in the pool at offset ", after.pool_offset));
    }
  }
  sums_ = TensorSums(bytes);
  return Status::ok();
}

// Only pieces that hold some of the tensors are visited: a load need not fill the whole pool.
void Loading::cut_windows() {
  const auto pieces = pool_.pieces();
  std::size_t next = 0;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const std::uint64_t end = pieces[p].offset + pieces[p].bytes;
    while (next < order_.size() &&
           tensors_[order_[next]].pool_offset + tensors_[order_[next]].bytes <= pieces[p].offset) {
      ++next;
    }
    if (next == order_.size()) return;
    if (tensors_[order_[next]].pool_offset >= end) continue;
    for (std::uint64_t begin = pieces[p].offset; begin < end; begin += kWindowBytes) {
      windows_.push_back({begin, std::min(end, begin + kWindowBytes), p});
      left_[p].fetch_add(1, std::memory_order_relaxed);
    }
  }
}

Status Loading::load(const Window& window) {
  auto it = std::partition_point(order_.begin(), order_.end(), [&](std::size_t i) {
    return tensors_[i].pool_offset + tensors_[i].bytes <= window.begin;
  });
  for (; it != order_.end() && tensors_[*it].pool_offset < window.end; ++it) {
    const PoolTensor& tensor = tensors_[*it];
    // Cut at the words of the tensor, which need not be those of the pool (files in place). Both
    // windows of a border round alike.
    const auto cut = [&](std::uint64_t offset) {
      if (offset <= tensor.pool_offset) return std::uint64_t{0};
      return std::min(tensor.bytes, (offset - tensor.pool_offset + 7) / 8 * 8);
    };
    CKPT_RETURN_IF_ERROR(load_part(*it, cut(window.begin), cut(window.end)));
  }
  if (left_[window.piece].fetch_sub(1, std::memory_order_acq_rel) == 1 && options_.pin != nullptr) {
    return pool_.pin(window.piece, *options_.pin);
  }
  return Status::ok();
}

Status Loading::load_part(std::size_t tensor, std::uint64_t begin, std::uint64_t end) {
  std::byte* const data = pool_.pointer(tensors_[tensor].pool_offset);
  while (begin < end) {
    CKPT_RETURN_IF_ERROR(check_waits());
    // A block must not cross a border of blocks of TensorSums.
    const std::uint64_t bytes = std::min(
        {end - begin, kBlockBytes, TensorSums::kBlockBytes - begin % TensorSums::kBlockBytes});
    CKPT_ASSIGN_OR_RETURN(const std::uint64_t sum, fill_(tensor, begin, data + begin, bytes));
    sums_.add(tensor, begin, sum);
    report(bytes);
    begin += bytes;
  }
  return Status::ok();
}

Status Loading::check_waits() const {
  if (options_.abort != nullptr && options_.abort->raised()) return options_.abort->cause();
  if (options_.deadline.expired()) {
    return deadline_exceeded(concat("loading ", tensors_.size(), " tensors into host memory: ",
                                    format_bytes(done_), " done when the time was up"));
  }
  return Status::ok();
}

void Loading::report(std::uint64_t bytes) {
  done_.fetch_add(bytes, std::memory_order_relaxed);
  if (!options_.progress) return;
  // Whoever finds another thread reporting leaves it at that.
  if (const std::unique_lock lock(progress_mutex_, std::try_to_lock); lock) {
    options_.progress(done_.load(std::memory_order_relaxed));
  }
}

}  // namespace

Result<TensorSums> load_windows(HostPool& pool, std::span<const PoolTensor> tensors,
                                const FillBlock& fill, const LoadOptions& options) {
  return Loading(pool, tensors, fill, options).run();
}

}  // namespace ckpt
