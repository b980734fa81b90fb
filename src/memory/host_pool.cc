#include "memory/host_pool.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "base/parallel.h"
#include "base/shared_memory.h"
#include "base/strings.h"

namespace ckpt {
namespace {

constexpr std::uint64_t kHugePage = 2 << 20;
constexpr std::uint64_t kSmallestPiece = 32 << 20;
constexpr std::uint64_t kLargestPiece = 256 << 20;
constexpr int kUnpinThreads = 16;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) {
  return (value + step - 1) / step * step;
}

std::uint64_t default_piece_bytes(std::uint64_t bytes) {
  return std::clamp(round_up(bytes / 16, kHugePage), kSmallestPiece, kLargestPiece);
}

// A preference, not a binding: a full node must not end in an out-of-memory kill while another has
// room.
void prefer_node(std::byte* data, std::uint64_t bytes, int node) {
  constexpr int kMaskBits = 1024;
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  if (node < 0 || node >= kMaskBits) return;
  unsigned long mask[kMaskBits / kWordBits] = {};
  mask[node / kWordBits] = 1ul << (node % kWordBits);
  if (::syscall(SYS_mbind, data, bytes, MPOL_PREFERRED, mask, kMaskBits + 1, 0) != 0) {
    log_warning("host pool: cannot prefer memory of NUMA node ", node, ": ",
                errno_error("mbind", errno).message());
  }
}

Status no_memory(std::uint64_t bytes, std::uint64_t available) {
  return resource_exhausted(concat("a host pool of ", format_bytes(bytes),
                                   " does not fit in host memory, of which ",
                                   format_bytes(available),
                                   " are available; use more ranks or hosts, or unregister another "
                                   "checkpoint"));
}

const PoolRun* find(std::span<const PoolRun> runs, std::uint64_t offset) {
  const auto after =
      std::upper_bound(runs.begin(), runs.end(), offset,
                       [](std::uint64_t value, const PoolRun& run) { return value < run.offset; });
  if (after == runs.begin()) return nullptr;
  const PoolRun& run = *(after - 1);
  return offset - run.offset < run.bytes ? &run : nullptr;
}

}  // namespace

Result<PoolLayout> lay_out_pool(std::span<const std::uint64_t> tensor_bytes) {
  constexpr std::uint64_t kLimit = 1ull << 63;
  PoolLayout layout;
  layout.offsets.reserve(tensor_bytes.size());
  for (const std::uint64_t bytes : tensor_bytes) {
    if (bytes > kLimit - kPoolAlignment - layout.bytes) {
      return invalid_argument(concat("tensor ", layout.offsets.size(), " of ", bytes,
                                     " bytes: the sizes pass 2^63 bytes"));
    }
    layout.offsets.push_back(layout.bytes);
    layout.bytes = round_up(layout.bytes + bytes, kPoolAlignment);
  }
  return layout;
}

Result<std::unique_ptr<HostPool>> HostPool::create(std::uint64_t bytes,
                                                   const HostPoolOptions& options) {
  if (options.piece_bytes % kHugePage != 0) {
    return invalid_argument(
        concat("piece_bytes ", options.piece_bytes, " is no multiple of 2 MiB"));
  }
  std::unique_ptr<HostPool> pool(new HostPool);
  if (bytes == 0) return pool;
  CKPT_ASSIGN_OR_RETURN(const std::uint64_t available, available_host_memory());
  if (bytes > available) return no_memory(bytes, available);
  // One huge page more than needed, so that the pool can begin at the border of one.
  pool->mapping_bytes_ = round_up(bytes, kHugePage) + kHugePage;
  void* mapping = ::mmap(nullptr, pool->mapping_bytes_, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return no_memory(bytes, available);
  pool->mapping_ = static_cast<std::byte*>(mapping);
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  std::byte* data = pool->mapping_ + (round_up(address, kHugePage) - address);
  prefer_node(data, round_up(bytes, kHugePage), options.numa_node);
  // Refused where the kernel has no huge pages: slower, but right.
  if (options.huge_pages) ::madvise(data, round_up(bytes, kHugePage), MADV_HUGEPAGE);
  pool->anonymous_bytes_ = bytes;
  pool->append_segment(data, bytes,
                       options.piece_bytes != 0 ? options.piece_bytes : default_piece_bytes(bytes));
  return pool;
}

HostPool::~HostPool() {
  unpin();
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
}

std::uint64_t HostPool::add_file(std::unique_ptr<FileMapping> file) {
  append_segment(file->data(), file->bytes(), default_piece_bytes(file->bytes()));
  files_.push_back(std::move(file));
  return segments_.back().offset;
}

void HostPool::append_segment(std::byte* data, std::uint64_t bytes, std::uint64_t piece_bytes) {
  // Segments begin at 2 MiB steps, so that offsets keep their alignment.
  const std::uint64_t offset = round_up(this->bytes(), kHugePage);
  segments_.push_back({offset, bytes, data});
  for (std::uint64_t done = 0; done < bytes; done += piece_bytes) {
    pieces_.push_back({offset + done, std::min(piece_bytes, bytes - done), data + done});
  }
  pins_.resize(pieces_.size());
}

std::uint64_t HostPool::bytes() const {
  return segments_.empty() ? 0 : segments_.back().offset + segments_.back().bytes;
}

std::byte* HostPool::pointer(std::uint64_t offset) const {
  const PoolRun* segment = find(segments_, offset);
  return segment == nullptr ? nullptr : segment->data + (offset - segment->offset);
}

Status HostPool::check_range(std::uint64_t offset, std::uint64_t bytes) const {
  if (bytes == 0) return Status::ok();
  const PoolRun* segment = find(segments_, offset);
  if (segment != nullptr && bytes <= segment->bytes - (offset - segment->offset)) {
    return Status::ok();
  }
  return invalid_argument(concat("no segment of the host pool (", this->bytes(), " bytes, ",
                                 segments_.size(), " segments) holds ", bytes, " bytes at offset ",
                                 offset));
}

Result<std::vector<PoolRun>> HostPool::cut(std::uint64_t offset, std::uint64_t bytes) const {
  std::vector<PoolRun> runs;
  while (bytes > 0) {
    const PoolRun* piece = find(pieces_, offset);
    if (piece == nullptr) {
      return invalid_argument(concat("no piece of the host pool (", this->bytes(),
                                     " bytes) holds offset ", offset, ", where ", bytes,
                                     " bytes are wanted"));
    }
    const std::uint64_t within = offset - piece->offset;
    const std::uint64_t taken = std::min(bytes, piece->bytes - within);
    runs.push_back({offset, taken, piece->data + within});
    offset += taken;
    bytes -= taken;
  }
  return runs;
}

Status HostPool::pin(std::size_t piece, Device& device) {
  if (pins_[piece] != nullptr) return Status::ok();
  CKPT_ASSIGN_OR_RETURN(pins_[piece], device.pin(pieces_[piece].data, pieces_[piece].bytes));
  return Status::ok();
}

void HostPool::unpin() {
  const auto pinned =
      std::count_if(pins_.begin(), pins_.end(), [](const auto& pin) { return pin != nullptr; });
  if (pinned == 0) return;
  ThreadPool threads(std::min({kUnpinThreads, static_cast<int>(pinned), available_processors()}));
  [[maybe_unused]] const Status done = threads.for_each(pins_.size(), [&](std::size_t i) {
    pins_[i].reset();
    return Status::ok();
  });
}

}  // namespace ckpt
