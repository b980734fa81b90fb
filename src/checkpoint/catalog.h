// The catalog: all tensors of a gathered checkpoint, each name once, with every rank that holds it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/metas.h"
#include "checkpoint_engine/status.h"
#include "checkpoint_engine/tensor.h"

namespace ckpt {

/// One copy of a tensor in the pool of an owner.
struct Replica {
  int rank;
  std::uint32_t index;   ///< in the layout of `rank`
  std::uint64_t offset;  ///< pool offset at `rank`
};

struct CatalogTensor {
  const TensorInfo* info;  ///< lives as long as the catalog
  std::uint64_t digest;
  std::uint64_t group;  ///< equal for tensors that engines fuse (order.h)
  std::uint32_t first_replica;
  std::uint32_t replica_count;  ///< at least 1
};

/// What errors call a rank; empty: "rank 3".
using RankLabel = std::function<std::string(int rank)>;

/// Immutable; safe to share between threads.
class Catalog {
 public:
  /// One name on several ranks with equal dtype, shape and digest makes replicas; anything else is
  /// refused with both ranks' labels (kDataLoss for digests, kInvalidArgument for dtype and
  /// shape). kInvalidArgument also for metas that contradict themselves: instance data of another
  /// layout or rank, digest algorithms that differ. Time is linear in the tensors.
  static Result<Catalog> build(std::shared_ptr<const Metas> metas, const RankLabel& label = {});

  /// In order of first appearance: rank 0's layout, then what rank 1 adds, and so on. Equal on
  /// every rank.
  std::span<const CatalogTensor> tensors() const { return tensors_; }
  /// In order of rank.
  std::span<const Replica> replicas(const CatalogTensor& tensor) const {
    return std::span(replicas_).subspan(tensor.first_replica, tensor.replica_count);
  }
  /// For each rank, in layout order: index into tensors().
  std::span<const std::uint32_t> tensors_of(int rank) const { return by_rank_[rank]; }
  int world_size() const { return static_cast<int>(by_rank_.size()); }
  const Metas& metas() const { return *metas_; }
  /// Each name counted once.
  std::uint64_t total_bytes() const { return total_bytes_; }

 private:
  // `held` counts the tensors of all ranks, replicas included.
  Status join_names(std::size_t held, const RankLabel& label);
  void list_replicas(std::size_t held);

  std::shared_ptr<const Metas> metas_;
  std::vector<CatalogTensor> tensors_;
  std::vector<Replica> replicas_;
  std::vector<std::vector<std::uint32_t>> by_rank_;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace ckpt
