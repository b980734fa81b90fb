#include "checkpoint/catalog.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "checkpoint/digest.h"
#include "checkpoint/name_index.h"

namespace ckpt {
namespace {

/// The algorithm of metas that have no digests, and are loaded without a check.
constexpr std::uint32_t kNoDigests = 0;

std::string label_of(const RankLabel& label, int rank) {
  return label ? label(rank) : concat("rank ", rank);
}

/// The first rank that has digests at all.
int first_holder(const Metas& metas) {
  const auto holder = std::ranges::find_if(metas.ranks, [](const RankMetas& rank) {
    return rank.layout != nullptr && !rank.layout->tensors.empty();
  });
  return holder == metas.ranks.end() ? 0 : static_cast<int>(holder - metas.ranks.begin());
}

// The rank's own data fits its layout and says where every byte lies. `other` has the algorithm
// that all must have.
Status check_rank(const Metas& metas, int rank, int other, const RankLabel& label) {
  const auto& [layout, instance] = metas.ranks[static_cast<std::size_t>(rank)];
  const auto refuse = [&](const auto&... reason) {
    return invalid_argument(concat("metas of checkpoint ", quoted(metas.checkpoint_name), ": ",
                                   label_of(label, rank), " ", reason...));
  };
  if (layout == nullptr) return refuse("has no layout");
  if (instance.rank != rank) return refuse("has data of rank ", instance.rank);
  if (instance.layout_hash != layout->hash) {
    return refuse("has data for layout ", instance.layout_hash.to_string(), " beside layout ",
                  layout->hash.to_string(), ": gather again");
  }
  const std::size_t count = layout->tensors.size();
  if (layout->groups.size() != count || layout->name_hashes.size() != count) {
    return refuse("has a layout that Layout::make did not make");
  }
  if (instance.offsets.size() != count || instance.digests.size() != count) {
    return refuse("has ", count, " tensors, ", instance.offsets.size(), " offsets and ",
                  instance.digests.size(), " digests");
  }
  // Digests that this program cannot compute would look like damaged tensors.
  if (count > 0 && instance.digest_algorithm != kDigestAlgorithm &&
      instance.digest_algorithm != kNoDigests) {
    return refuse("computes digests by algorithm ", instance.digest_algorithm,
                  ", this program by algorithm ", kDigestAlgorithm,
                  ": run the same version on both sides");
  }
  const std::uint32_t wanted =
      metas.ranks[static_cast<std::size_t>(other)].instance.digest_algorithm;
  if (count > 0 && instance.digest_algorithm != wanted) {
    return refuse("computes digests by algorithm ", instance.digest_algorithm, ", ",
                  label_of(label, other), " by ", wanted, ": run the same version on all ranks");
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (instance.offsets[i] + layout->tensors[i].bytes < instance.offsets[i]) {
      return refuse("places tensor ", quoted(layout->tensors[i].name), " of ",
                    layout->tensors[i].bytes, " bytes at offset ", instance.offsets[i],
                    ", beyond the end of the address space");
    }
  }
  return Status::ok();
}

std::string describe(const TensorInfo& tensor) {
  std::string out = concat(dtype_name(tensor.dtype), " [");
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    out += concat(i == 0 ? "" : ", ", tensor.shape[i]);
  }
  return out + "]";
}

std::string hex(std::uint64_t digest) { return LayoutHash{0, digest}.to_string().substr(16); }

Status check_replica(const CatalogTensor& first, int first_rank, const TensorInfo& other,
                     std::uint64_t other_digest, int other_rank, const RankLabel& label) {
  if (first_rank == other_rank) {
    return invalid_argument(concat(label_of(label, other_rank), " has tensor ", quoted(other.name),
                                   " twice in its layout"));
  }
  if (first.info->dtype != other.dtype || first.info->shape != other.shape) {
    return invalid_argument(concat("tensor ", quoted(other.name), " is ", describe(*first.info),
                                   " on ", label_of(label, first_rank), " and ", describe(other),
                                   " on ", label_of(label, other_rank),
                                   ": equal names must be equal tensors"));
  }
  if (first.digest != other_digest) {
    return data_loss(concat(
        "tensor ", quoted(other.name), " has other bytes on ", label_of(label, first_rank),
        " (digest ", hex(first.digest), ") than on ", label_of(label, other_rank), " (digest ",
        hex(other_digest), "): register the same version on both, or on one of them only"));
  }
  return Status::ok();
}

}  // namespace

Result<Catalog> Catalog::build(std::shared_ptr<const Metas> metas, const RankLabel& label) {
  Catalog catalog;
  std::size_t held = 0;
  const int first = first_holder(*metas);
  for (int rank = 0; rank < static_cast<int>(metas->ranks.size()); ++rank) {
    CKPT_RETURN_IF_ERROR(check_rank(*metas, rank, first, label));
    held += metas->ranks[static_cast<std::size_t>(rank)].layout->tensors.size();
  }
  catalog.metas_ = std::move(metas);
  CKPT_RETURN_IF_ERROR(catalog.join_names(held, label));
  catalog.list_replicas(held);
  return catalog;
}

Status Catalog::join_names(std::size_t held, const RankLabel& label) {
  NameIndex names(held);
  std::vector<int> last_rank;  // by tensor: the highest rank that holds it so far
  tensors_.reserve(held);
  last_rank.reserve(held);
  by_rank_.resize(metas_->ranks.size());
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto& [layout, instance] = metas_->ranks[rank];
    by_rank_[rank].reserve(layout->tensors.size());
    for (std::size_t i = 0; i < layout->tensors.size(); ++i) {
      const TensorInfo& info = layout->tensors[i];
      const auto [number, is_new] = names.insert(info.name, layout->name_hashes[i]);
      by_rank_[rank].push_back(number);
      if (is_new) {
        tensors_.push_back({&info, instance.digests[i], layout->groups[i], 0, 1});
        last_rank.push_back(rank);
        if (__builtin_add_overflow(total_bytes_, info.bytes, &total_bytes_)) {
          return invalid_argument(concat("checkpoint ", quoted(metas_->checkpoint_name),
                                         " has more bytes than 64 bits can count"));
        }
        continue;
      }
      CKPT_RETURN_IF_ERROR(check_replica(tensors_[number], last_rank[number], info,
                                         instance.digests[i], rank, label));
      last_rank[number] = rank;
      ++tensors_[number].replica_count;
    }
  }
  return Status::ok();
}

void Catalog::list_replicas(std::size_t held) {
  std::uint32_t next = 0;
  for (CatalogTensor& tensor : tensors_) {
    tensor.first_replica = next;
    next += std::exchange(tensor.replica_count, 0);
  }
  replicas_.resize(held);
  for (int rank = 0; rank < world_size(); ++rank) {
    const std::vector<std::uint64_t>& offsets = metas_->ranks[rank].instance.offsets;
    for (std::uint32_t i = 0; i < by_rank_[rank].size(); ++i) {
      CatalogTensor& tensor = tensors_[by_rank_[rank][i]];
      replicas_[tensor.first_replica + tensor.replica_count++] = {rank, i, offsets[i]};
    }
  }
}

}  // namespace ckpt
