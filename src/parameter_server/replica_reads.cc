#include "parameter_server/replica_reads.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/log.h"
#include "base/strings.h"

namespace ckpt {
namespace {

/// Whether the owner, and not the reader, has ended the read.
bool is_owners_doing(const Status& status) {
  switch (status.code()) {
    case StatusCode::kPeerLost:
    case StatusCode::kNotFound:
    case StatusCode::kFailedPrecondition:
      return true;
    default:
      return false;
  }
}

const RemoteMemory::Piece* piece_with(const RemoteMemory& pool, std::uint64_t region) {
  const auto at = std::ranges::find(pool.pieces, region, &RemoteMemory::Piece::region);
  return at == pool.pieces.end() ? nullptr : &*at;
}

/// [offset, offset + bytes) of the pool, cut at the borders of its regions; false when they do not
/// hold it all.
bool append_reads(const RemoteMemory& pool, std::uint64_t offset, std::uint64_t bytes,
                  std::byte* destination, std::vector<ReadRange>& out) {
  std::uint64_t found = 0;
  for (const RemoteMemory::Piece& piece : pool.pieces) {
    const std::uint64_t begin = std::max(offset, piece.offset);
    const std::uint64_t end = std::min(offset + bytes, piece.offset + piece.bytes);
    if (begin >= end) continue;
    out.push_back(
        {piece.region, begin - piece.offset, destination + (begin - offset), end - begin});
    found += end - begin;
  }
  return found == bytes;
}

}  // namespace

/// One thread at a time, but for cancel().
class ReplicaReads::ReplicaRead final : public Read {
 public:
  ReplicaRead(ReplicaReads& reads, int rank, std::span<const ReadRange> ranges, Deadline deadline,
              ReadCallback callback)
      : reads_(reads),
        rank_(rank),
        ranges_(ranges.begin(), ranges.end()),
        deadline_(deadline),
        callback_(std::move(callback)) {
    for (const ReadRange& range : ranges_) bytes_ += range.bytes;
    if (reads_.is_lost(rank_)) {
      start_elsewhere(unavailable("its owner is lost"));
    } else {
      start({{rank_, ranges_}});
    }
  }

  bool done() const override {
    return std::ranges::all_of(parts_, [](const Part& part) { return part.read->done(); });
  }
  Status wait(Deadline deadline, AbortSignal* abort) override {
    while (true) {
      if (!failed_.is_ok()) return failed_;
      Status status;
      for (const Part& part : parts_) {
        status = part.read->wait(deadline, abort);
        if (status.is_ok()) continue;
        const bool ended = reads_.is_lost(part.rank);
        if ((abort != nullptr && abort->raised()) || deadline.expired() || cancelled_ ||
            !(ended || (is_owners_doing(status) && reads_.lose(part.rank, status)))) {
          return status;
        }
        break;
      }
      if (status.is_ok()) return status;
      // Their destinations are released when this returns.
      parts_.clear();
      start_elsewhere(status);
    }
  }
  void cancel(Status cause) override {
    cancelled_ = true;
    for (const Part& part : parts_) part.read->cancel(cause);
  }
  bool destination_released() const override {
    return std::ranges::all_of(parts_,
                               [](const Part& part) { return part.read->destination_released(); });
  }
  std::uint64_t bytes() const override { return bytes_; }
  std::uint64_t bytes_done() const override {
    std::uint64_t sum = 0;
    for (const Part& part : parts_) sum += part.read->bytes_done();
    return sum;
  }

 private:
  struct Part {
    int rank;
    std::unique_ptr<Read> read;
  };

  void start(const std::vector<Piece>& pieces) {
    const auto left = std::make_shared<std::atomic<std::size_t>>(pieces.size());
    for (const Piece& piece : pieces) {
      parts_.push_back({piece.rank, reads_.transport_.read(
                                        *reads_.pools_.at(piece.rank).peer, piece.ranges, deadline_,
                                        [left, callback = callback_](const Status& status) {
                                          if (left->fetch_sub(1) == 1 && callback) callback(status);
                                        })});
    }
  }

  void start_elsewhere(const Status& why) {
    const auto pieces = reads_.elsewhere(rank_, ranges_);
    if (pieces.is_ok()) return start(*pieces);
    failed_ = why.with_context(pieces.status().message());
    if (callback_) callback_(failed_);
  }

  ReplicaReads& reads_;
  const int rank_;
  const std::vector<ReadRange> ranges_;
  const Deadline deadline_;
  const ReadCallback callback_;
  std::uint64_t bytes_ = 0;
  std::vector<Part> parts_;
  Status failed_;
  std::atomic<bool> cancelled_{false};
};

ReplicaReads::ReplicaReads(Transport& transport, const Catalog& catalog,
                           std::map<int, RemoteMemory> pools)
    : transport_(transport), catalog_(catalog), pools_(std::move(pools)) {
  for (std::uint32_t tensor = 0; tensor < catalog.tensors().size(); ++tensor) {
    for (const Replica& replica : catalog.replicas(catalog.tensors()[tensor])) {
      if (pools_.contains(replica.rank) && catalog.tensors()[tensor].info->bytes > 0) {
        tensors_at_[replica.rank].emplace(replica.offset, tensor);
      }
    }
  }
}

int ReplicaReads::rank_of(const Peer& peer) const {
  for (const auto& [rank, pool] : pools_) {
    if (pool.peer == &peer) return rank;
  }
  return -1;
}

bool ReplicaReads::is_lost(int rank) const {
  const std::lock_guard lock(mutex_);
  return lost_.contains(rank);
}

const Replica* ReplicaReads::living_copy(std::uint32_t tensor) const {
  const auto replicas = catalog_.replicas(catalog_.tensors()[tensor]);
  // Not always the first one: what a lost owner gave is spread over the others.
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    const Replica& replica = replicas[(tensor + i) % replicas.size()];
    if (pools_.contains(replica.rank) && !lost_.contains(replica.rank)) return &replica;
  }
  return nullptr;
}

bool ReplicaReads::lose(int rank, const Status& why) {
  if (!pools_.contains(rank)) return false;
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.insert(rank).second) return true;
    const auto& tensors = tensors_at_[rank];
    const bool left = std::ranges::all_of(
        tensors, [&](const auto& tensor) { return living_copy(tensor.second) != nullptr; });
    if (!left) {
      lost_.erase(rank);
      return false;
    }
  }
  log_warning("reading on from replicas: ", why.message());
  pools_.at(rank).peer->close();
  return true;
}

Result<std::vector<ReplicaReads::Piece>> ReplicaReads::elsewhere(
    int rank, std::span<const ReadRange> ranges) const {
  const std::lock_guard lock(mutex_);
  const RemoteMemory& pool = pools_.at(rank);
  const auto& tensors = tensors_at_.at(rank);
  std::map<int, Piece> pieces;
  for (const ReadRange& range : ranges) {
    const RemoteMemory::Piece* piece = piece_with(pool, range.region);
    if (piece == nullptr) return internal_error("a read of memory that is no pool");
    const std::uint64_t begin = piece->offset + range.offset, end = begin + range.bytes;
    // From the last tensor that begins at or before it.
    auto at = tensors.upper_bound(begin);
    if (at != tensors.begin()) --at;
    for (; at != tensors.end() && at->first < end; ++at) {
      const auto& [place, tensor] = *at;
      const std::uint64_t from = std::max(begin, place);
      const std::uint64_t to = std::min(end, place + catalog_.tensors()[tensor].info->bytes);
      if (from >= to) continue;
      const Replica* copy = living_copy(tensor);
      if (copy == nullptr) {
        return unavailable(concat("nobody is left to read tensor ",
                                  quoted(catalog_.tensors()[tensor].info->name), " from"));
      }
      Piece& other = pieces.try_emplace(copy->rank, Piece{copy->rank, {}}).first->second;
      if (!append_reads(pools_.at(copy->rank), copy->offset + (from - place), to - from,
                        static_cast<std::byte*>(range.destination) + (from - begin),
                        other.ranges)) {
        return internal_error(concat("tensor ", quoted(catalog_.tensors()[tensor].info->name),
                                     " lies in no region of its stand-in, rank ", copy->rank));
      }
    }
  }
  std::vector<Piece> out;
  for (auto& [owner, piece] : pieces) out.push_back(std::move(piece));
  return out;
}

std::unique_ptr<Read> ReplicaReads::read(Peer& peer, std::span<const ReadRange> ranges,
                                         Deadline deadline, ReadCallback callback) {
  const int rank = rank_of(peer);
  if (rank < 0) return transport_.read(peer, ranges, deadline, std::move(callback));
  return std::make_unique<ReplicaRead>(*this, rank, ranges, deadline, std::move(callback));
}

}  // namespace ckpt
