// Tensors that lie on the device: their memory is brought by copy engines, and digested where it
// lies. Pages are touched and pinned ahead of the copies, since a copy into unpinned memory has a
// seventh of the speed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/parallel.h"
#include "base/strings.h"
#include "checkpoint/digest.h"
#include "memory/load.h"

namespace ckpt {
namespace {

constexpr std::uint64_t kChunkBytes = 32 << 20;
constexpr std::uint64_t kTouchBytes = 4096;
constexpr std::size_t kWindow = 4;  // chunks queued at once
// Tensors whose digests are queued at once: a stream uses the memory and the events of those before
// again, and makes new ones only for what nobody has waited for.
constexpr std::size_t kDigestWindow = 8;
constexpr int kMostThreads = 16;
// Between two looks at deadline and abort while a piece is being pinned.
constexpr std::chrono::milliseconds kLook{20};

/// Pieces of a pool that are touched and pinned, in the order given, ahead of whoever waits for
/// them.
class PinnedAhead {
 public:
  PinnedAhead(HostPool& pool, Device& device, std::vector<std::size_t> pieces, int threads)
      : pool_(pool), device_(device), ready_(pool.pieces().size(), false) {
    thread_ = std::thread([this, pieces = std::move(pieces), threads] {
      ThreadPool workers(threads);
      const Status status =
          workers.for_each(pieces.size(), [&](std::size_t i) { return prepare(pieces[i]); });
      const std::lock_guard lock(mutex_);
      if (!status.is_ok()) status_ = status;
      changed_.notify_all();
    });
  }
  ~PinnedAhead() {
    stop_ = true;
    thread_.join();
  }

  /// `wanted` is asked now and then: what it says instead of ok ends the wait.
  Status wait(std::size_t piece, const std::function<Status()>& wanted) {
    std::unique_lock lock(mutex_);
    while (!ready_[piece] && status_.is_ok()) {
      CKPT_RETURN_IF_ERROR(wanted());
      changed_.wait_for(lock, kLook);
    }
    return ready_[piece] ? Status() : status_;
  }

 private:
  Status prepare(std::size_t piece) {
    if (stop_) return aborted("nobody needs the rest");
    const PoolRun& run = pool_.pieces()[piece];
    if (!pool_.pinned(piece)) {
      // What lies there already stays.
      for (std::uint64_t at = 0; at < run.bytes; at += kTouchBytes) {
        volatile std::byte& byte = run.data[at];
        byte = byte;
      }
      CKPT_RETURN_IF_ERROR(pool_.pin(piece, device_));
    }
    const std::lock_guard lock(mutex_);
    ready_[piece] = true;
    changed_.notify_all();
    return Status();
  }

  HostPool& pool_;
  Device& device_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards ready_ and status_
  std::condition_variable changed_;
  std::vector<bool> ready_;
  Status status_;
  std::thread thread_;
};

/// The digests of one tensor, block by block: on a stream of their own, or (without a ticket) by
/// the processor when the tensor has arrived.
struct TensorDigest {
  std::vector<std::uint64_t> sums;
  CopyStream::Ticket ticket = 0;
};

class DeviceLoad {
 public:
  DeviceLoad(HostPool& pool, std::span<const PoolTensor> tensors,
             std::span<const std::byte* const> sources, Device& device, const LoadOptions& options)
      : pool_(pool), tensors_(tensors), sources_(sources), device_(device), options_(options) {}

  Result<TensorSums> run();

 private:
  Status digest(std::size_t tensor);
  Status copy(std::size_t tensor, PinnedAhead& pinned);
  Status digest_arrived(std::size_t tensor, ThreadPool& threads);
  std::size_t piece_of(std::uint64_t offset) const;
  std::vector<std::size_t> needed_pieces() const;
  Status still_wanted() const;
  Status wait_for_oldest();
  Status wait(CopyStream& stream, CopyStream::Ticket ticket);

  HostPool& pool_;
  const std::span<const PoolTensor> tensors_;
  const std::span<const std::byte* const> sources_;
  Device& device_;
  const LoadOptions& options_;
  AbortSignal never_;
  std::vector<TensorDigest> digests_;
  std::deque<CopyStream::Ticket> queued_;
  std::uint64_t done_ = 0;
  // Ends before what its copies touch.
  std::unique_ptr<CopyStream> copies_, summing_;
};

Status DeviceLoad::digest(std::size_t tensor) {
  if (tensor >= kDigestWindow && digests_[tensor - kDigestWindow].ticket > 0) {
    CKPT_RETURN_IF_ERROR(wait(*summing_, digests_[tensor - kDigestWindow].ticket));
  }
  TensorDigest& digest = digests_[tensor];
  std::vector<DigestRequest> requests;
  const std::uint64_t bytes = tensors_[tensor].bytes;
  for (std::uint64_t at = 0; at < bytes; at += TensorSums::kBlockBytes) {
    requests.push_back(
        {sources_[tensor] + at, std::min(TensorSums::kBlockBytes, bytes - at), at / 8});
  }
  digest.sums.resize(requests.size());
  if (!device_.digests(sources_[tensor])) return Status();
  CKPT_RETURN_IF_ERROR(summing_->digest(requests, digest.sums.data()));
  CKPT_ASSIGN_OR_RETURN(digest.ticket, summing_->mark());
  return Status();
}

Status DeviceLoad::digest_arrived(std::size_t tensor, ThreadPool& threads) {
  TensorDigest& digest = digests_[tensor];
  const std::byte* const data = pool_.pointer(tensors_[tensor].pool_offset);
  return threads.for_each(digest.sums.size(), [&](std::size_t block) -> Status {
    CKPT_RETURN_IF_ERROR(still_wanted());
    const std::uint64_t at = block * TensorSums::kBlockBytes;
    const std::uint64_t bytes = std::min(TensorSums::kBlockBytes, tensors_[tensor].bytes - at);
    digest.sums[block] = digest_sum(data + at, bytes, at / 8);
    return Status();
  });
}

// Waiting for copies hears it too, but where pinning is the limit they are there already.
Status DeviceLoad::still_wanted() const {
  if (options_.abort != nullptr && options_.abort->raised()) return options_.abort->cause();
  if (options_.deadline.expired()) {
    return deadline_exceeded(concat("loading ", tensors_.size(), " tensors of ", device_.name(),
                                    " into host memory: ", format_bytes(done_), " were there"));
  }
  return Status();
}

Status DeviceLoad::wait(CopyStream& stream, CopyStream::Ticket ticket) {
  return stream.wait(ticket, options_.deadline,
                     options_.abort != nullptr ? *options_.abort : never_);
}

Status DeviceLoad::wait_for_oldest() {
  const CopyStream::Ticket ticket = queued_.front();
  queued_.pop_front();
  return wait(*copies_, ticket);
}

std::size_t DeviceLoad::piece_of(std::uint64_t offset) const {
  const auto pieces = pool_.pieces();
  const auto after = std::upper_bound(
      pieces.begin(), pieces.end(), offset,
      [](std::uint64_t value, const PoolRun& piece) { return value < piece.offset; });
  return static_cast<std::size_t>(after - pieces.begin()) - 1;
}

std::vector<std::size_t> DeviceLoad::needed_pieces() const {
  std::vector<std::size_t> needed;
  std::vector<bool> known(pool_.pieces().size(), false);
  for (const PoolTensor& tensor : tensors_) {
    if (tensor.bytes == 0) continue;
    const std::size_t last = piece_of(tensor.pool_offset + tensor.bytes - 1);
    for (std::size_t piece = piece_of(tensor.pool_offset); piece <= last; ++piece) {
      if (!known[piece]) needed.push_back(piece);
      known[piece] = true;
    }
  }
  return needed;
}

Status DeviceLoad::copy(std::size_t tensor, PinnedAhead& pinned) {
  const std::byte* from = sources_[tensor];
  std::uint64_t offset = tensors_[tensor].pool_offset, left = tensors_[tensor].bytes;
  while (left > 0) {
    CKPT_ASSIGN_OR_RETURN(const auto runs, pool_.cut(offset, std::min(left, kChunkBytes)));
    for (const PoolRun& run : runs) {
      CKPT_RETURN_IF_ERROR(pinned.wait(piece_of(run.offset), [this] { return still_wanted(); }));
      CKPT_RETURN_IF_ERROR(still_wanted());
      if (queued_.size() == kWindow) CKPT_RETURN_IF_ERROR(wait_for_oldest());
      CKPT_RETURN_IF_ERROR(copies_->copy(run.data, from, run.bytes));
      CKPT_ASSIGN_OR_RETURN(const auto ticket, copies_->mark());
      queued_.push_back(ticket);
      from += run.bytes;
      offset += run.bytes;
      left -= run.bytes;
      done_ += run.bytes;
    }
    if (options_.progress) options_.progress(done_);
  }
  return Status();
}

Result<TensorSums> DeviceLoad::run() {
  std::vector<std::uint64_t> bytes;
  for (const PoolTensor& tensor : tensors_) {
    CKPT_RETURN_IF_ERROR(pool_.check_range(tensor.pool_offset, tensor.bytes)
                             .with_context(concat("tensor ", quoted(tensor.name))));
    bytes.push_back(tensor.bytes);
  }
  digests_.resize(tensors_.size());
  const int threads =
      options_.threads > 0 ? options_.threads : std::min(available_processors(), kMostThreads);
  PinnedAhead pinned(pool_, device_, needed_pieces(), threads);
  CKPT_ASSIGN_OR_RETURN(copies_, device_.make_stream());
  CKPT_ASSIGN_OR_RETURN(summing_, device_.make_stream());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    CKPT_RETURN_IF_ERROR(digest(i));
    CKPT_RETURN_IF_ERROR(copy(i, pinned).with_context(concat("tensor ", quoted(tensors_[i].name))));
  }
  while (!queued_.empty()) CKPT_RETURN_IF_ERROR(wait_for_oldest());
  TensorSums sums(bytes);
  ThreadPool processors(threads);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    CKPT_RETURN_IF_ERROR(digests_[i].ticket > 0 ? wait(*summing_, digests_[i].ticket)
                                                : digest_arrived(i, processors));
    for (std::size_t block = 0; block < digests_[i].sums.size(); ++block) {
      sums.add(i, block * TensorSums::kBlockBytes, digests_[i].sums[block]);
    }
  }
  return sums;
}

}  // namespace

Result<TensorSums> load_device(HostPool& pool, std::span<const PoolTensor> tensors,
                               std::span<const std::byte* const> sources, Device& device,
                               const LoadOptions& options) {
  if (tensors.size() != sources.size()) {
    return invalid_argument(
        concat(tensors.size(), " tensors, but ", sources.size(), " sources to load them from"));
  }
  return DeviceLoad(pool, tensors, sources, device, options).run();
}

}  // namespace ckpt
