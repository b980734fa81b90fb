// Metas: what every rank knows of all tensors of a checkpoint. The layout (names, dtypes, shapes)
// is immutable and hashed, so that it travels once; the instance data (places, digests,
// descriptors) travels with every gather.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "checkpoint_engine/tensor.h"

namespace ckpt {

/// XXH3 (128 bits) over names, dtypes and shapes in layout order, whatever the encoding.
struct LayoutHash {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const LayoutHash&) const = default;
  /// 32 hexadecimal digits.
  std::string to_string() const;
};

/// The tensors that one rank holds, in plan order (order.h).
struct Layout {
  std::vector<TensorInfo> tensors;
  LayoutHash hash;
  // Computed once from the names; not hashed, not sent.
  std::vector<std::uint64_t> groups;       ///< group_id (order.h) of each tensor
  std::vector<std::uint64_t> name_hashes;  ///< name_hash (name_index.h) of each tensor

  /// The only way to make one that a catalog accepts. The tensors must be in plan order already,
  /// and no name may be there twice (Catalog::build refuses it).
  static Layout make(std::vector<TensorInfo> tensors);
};

/// A piece of a pool as readers of other processes know it.
struct PoolRegion {
  std::uint64_t pool_offset = 0;  ///< of its first byte
  std::uint64_t bytes = 0;
  std::uint64_t region = 0;  ///< its number in the transport descriptor

  bool operator==(const PoolRegion&) const = default;
};

/// Where a rank is in the network, as far as it knows: for planning and for people. Reading needs
/// only the transport descriptor.
struct NetworkPlace {
  std::string address;               ///< of its interface, e.g. "10.0.0.7"; empty: none
  std::vector<std::string> devices;  ///< e.g. "mlx5_0:1", "eth0"; equal lists of a host share them
  std::uint64_t mbit = 0;            ///< of all devices together, per second; 0: unknown

  bool operator==(const NetworkPlace&) const = default;
};

/// What changes from registration to registration. Offsets are *pool offsets*: positions in the
/// owner's pool, one address space per rank even where the memory behind it comes in several
/// pieces.
struct InstanceData {
  int rank = 0;
  /// Of the owner's registration, which its door shows (transport/lease.h): metas of an earlier one
  /// are refused by it.
  std::uint64_t epoch = 0;
  std::string host_id;
  LayoutHash layout_hash;
  std::uint32_t digest_algorithm = 0;
  std::vector<std::uint64_t> offsets;  ///< pool offset of each tensor, in layout order
  std::vector<std::uint64_t> digests;  ///< of each tensor, in layout order
  /// How to read the pool from elsewhere; may be empty.
  std::vector<std::byte> transport_descriptor;
  /// Ascending and without overlap; empty when there is no descriptor.
  std::vector<PoolRegion> pool_regions;
  /// The region that readers of other jobs knock at (transport/lease.h); 0: none.
  std::uint64_t door_region = 0;
  NetworkPlace network;

  bool operator==(const InstanceData&) const = default;
};

struct RankMetas {
  std::shared_ptr<const Layout> layout;
  InstanceData instance;
};

/// Element i belongs to rank i.
struct Metas {
  std::string checkpoint_name;
  std::vector<RankMetas> ranks;
  /// Where metas of several jobs were joined: the first rank of each; else empty.
  std::vector<int> first_ranks;
};

/// kInvalidArgument that names a tensor when its name is there twice.
Status check_unique_names(const Layout& layout);
/// kInvalidArgument unless the regions ascend without overlap and end within 64 bits.
Status check_pool_regions(std::span<const PoolRegion> regions);

/// A tensor with more dimensions is refused: torch knows no such thing.
inline constexpr std::size_t kMaxDimensions = 64;

// FlatBuffers (schema/metas.fbs). Decoding verifies everything it touches: bytes may come from
// anywhere, and need no alignment. kProtocol: cut, damaged or contradictory bytes (an unknown
// dtype, a shape without a size, a name twice, counts that disagree).
std::vector<std::byte> encode_layout(const Layout& layout);
Result<Layout> decode_layout(std::span<const std::byte> bytes);
std::vector<std::byte> encode_instance_data(const InstanceData& data);
Result<InstanceData> decode_instance_data(std::span<const std::byte> bytes);

}  // namespace ckpt
