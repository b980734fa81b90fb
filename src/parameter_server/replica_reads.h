// Reads of other jobs' pools that go on from replicas when their owner is lost.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "checkpoint/catalog.h"
#include "collective/chain/chain_spread.h"
#include "transport/transport.h"

namespace ckpt {

/// A transport whose reads of the pools that it was told of are repeated elsewhere, tensor by
/// tensor, when their owner is lost, stops, or has taken its memory back. What it was not told of
/// is read as always. The plan does not change, nor who waits for whom: only this rank's bytes come
/// from another place. A read is repeated by the thread that waits for it.
class ReplicaReads final : public Transport {
 public:
  /// `pools`: all owners of `catalog` that may be read, by rank; their peers, like the transport
  /// and the catalog, outlive this.
  ReplicaReads(Transport& transport, const Catalog& catalog, std::map<int, RemoteMemory> pools);

  /// From now on nothing is read from this owner, and its reads under way end. False, and nothing
  /// changes, where somebody is needed who is lost: a tensor would have no copy left. Any thread.
  bool lose(int rank, const Status& why);

  std::string_view name() const override { return transport_.name(); }
  const std::string& instance() const override { return transport_.instance(); }
  Result<std::unique_ptr<MemoryRegion>> register_memory(void* data, std::uint64_t bytes) override {
    return transport_.register_memory(data, bytes);
  }
  Result<std::vector<std::byte>> descriptor() override { return transport_.descriptor(); }
  Result<std::unique_ptr<Peer>> connect(std::span<const std::byte> descriptor,
                                        ConnectOptions options, Deadline deadline) override {
    return transport_.connect(descriptor, std::move(options), deadline);
  }
  std::unique_ptr<Read> read(Peer& peer, std::span<const ReadRange> ranges, Deadline deadline,
                             ReadCallback callback) override;
  Status signal(Peer& peer, std::span<const std::byte> message) override {
    return transport_.signal(peer, message);
  }
  void set_signal_handler(SignalHandler handler) override {
    transport_.set_signal_handler(std::move(handler));
  }
  TransportStatistics statistics() const override { return transport_.statistics(); }
  void close() override { transport_.close(); }

 private:
  class ReplicaRead;
  /// A read of one owner, which is part of another.
  struct Piece {
    int rank;
    std::vector<ReadRange> ranges;
  };

  int rank_of(const Peer& peer) const;
  bool is_lost(int rank) const;
  Result<std::vector<Piece>> elsewhere(int rank, std::span<const ReadRange> ranges) const;
  const Replica* living_copy(std::uint32_t tensor) const;

  Transport& transport_;
  const Catalog& catalog_;
  const std::map<int, RemoteMemory> pools_;
  /// By rank: its tensors by pool offset.
  std::map<int, std::map<std::uint64_t, std::uint32_t>> tensors_at_;
  mutable std::mutex mutex_;
  std::set<int> lost_;  // guarded by mutex_
};

}  // namespace ckpt
