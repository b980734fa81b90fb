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

/// XXH3 (128 bits) over the encoded layout.
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

  /// Computes the hash. The tensors must be in plan order already.
  static Layout make(std::vector<TensorInfo> tensors);
};

/// What changes from registration to registration. Offsets are *pool offsets*: positions in the
/// owner's pool, one address space per rank even where the memory behind it comes in several
/// pieces.
struct InstanceData {
  int rank = 0;
  std::uint64_t epoch =
      0;  ///< of the owner's registration; a descriptor of another epoch is refused
  std::string host_id;
  LayoutHash layout_hash;
  std::uint32_t digest_algorithm = 0;
  std::vector<std::uint64_t> offsets;  ///< pool offset of each tensor, in layout order
  std::vector<std::uint64_t> digests;  ///< of each tensor, in layout order
  std::vector<std::byte>
      transport_descriptor;  ///< how to read the pool from elsewhere; may be empty
};

struct RankMetas {
  std::shared_ptr<const Layout> layout;
  InstanceData instance;
};

/// Element i belongs to rank i.
struct Metas {
  std::string checkpoint_name;
  std::vector<RankMetas> ranks;
};

// FlatBuffers (schema/metas.fbs). Decoding verifies everything it touches: bytes may come from
// anywhere.
std::vector<std::byte> encode_layout(const Layout& layout);
Result<Layout> decode_layout(std::span<const std::byte> bytes);
std::vector<std::byte> encode_instance_data(const InstanceData& data);
Result<InstanceData> decode_instance_data(std::span<const std::byte> bytes);

}  // namespace ckpt
