#include "checkpoint/metas.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "base/strings.h"
#include "metas_generated.h"

namespace ckpt {
namespace {

constexpr const char* kLayoutIdentifier = "CKL1";
constexpr const char* kInstanceIdentifier = "CKI1";
constexpr std::size_t kMaxShared = std::numeric_limits<std::uint8_t>::max();

// Numbers the kinds (dtype and shape) of a layout in order of first appearance. Neighbours in plan
// order have few kinds, so the map is asked seldom.
class KindTable {
 public:
  std::uint32_t number_of(const TensorInfo& tensor) {
    for (const auto* recent : recent_) {
      if (recent != nullptr && matches(*recent, tensor)) return recent->second;
    }
    const auto number = static_cast<std::uint32_t>(kinds_.size());
    const auto at = kinds_.try_emplace({tensor.dtype, tensor.shape}, number).first;
    if (at->second == number) in_order_.push_back(&at->first);
    recent_[next_recent_++ % recent_.size()] = &*at;
    return at->second;
  }
  using Kind = std::pair<DType, std::vector<std::int64_t>>;
  const std::vector<const Kind*>& in_order() const { return in_order_; }

 private:
  using Map = std::map<Kind, std::uint32_t>;
  static bool matches(const Map::value_type& entry, const TensorInfo& tensor) {
    return entry.first.first == tensor.dtype && entry.first.second == tensor.shape;
  }

  Map kinds_;
  std::vector<const Kind*> in_order_;
  std::array<const Map::value_type*, 8> recent_{};
  std::size_t next_recent_ = 0;
};

std::size_t shared_prefix(std::string_view a, std::string_view b) {
  const std::size_t limit = std::min({a.size(), b.size(), kMaxShared});
  return std::mismatch(a.begin(), a.begin() + limit, b.begin()).first - a.begin();
}

std::vector<std::byte> finished(const flatbuffers::FlatBufferBuilder& builder) {
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

// The root of `bytes`, whose memory it refers to; null when they are not a valid `Table`.
template <typename Table>
const Table* verified_root(std::span<const std::byte> bytes, const char* identifier) {
  constexpr int kMaxDepth = 8;
  if (bytes.size() < 8 || bytes.size() >= FLATBUFFERS_MAX_BUFFER_SIZE) return nullptr;
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  // Every table is found through an offset of four bytes.
  const auto max_tables = static_cast<flatbuffers::uoffset_t>(bytes.size() / 4);
  flatbuffers::Verifier verifier(data, bytes.size(), kMaxDepth, max_tables);
  return verifier.VerifyBuffer<Table>(identifier) ? flatbuffers::GetRoot<Table>(data) : nullptr;
}

// FlatBuffers reads single numbers in place: `bytes` itself, or a copy in `storage`, on an 8-byte
// border.
std::span<const std::byte> aligned(std::span<const std::byte> bytes,
                                   std::vector<std::byte>& storage) {
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % 8 == 0) return bytes;
  storage.assign(bytes.begin(), bytes.end());
  return storage;
}

template <typename T>
std::span<const T> items(const flatbuffers::Vector<T>* vector) {
  // The verifier knows the border of the length, four bytes before the items.
  static_assert(sizeof(T) <= sizeof(flatbuffers::uoffset_t), "take copied_items");
  if (vector == nullptr) return {};
  return {vector->data(), vector->size()};
}

template <typename T>
std::vector<T> copied_items(const flatbuffers::Vector<T>* vector) {
  std::vector<T> copy(vector == nullptr ? 0 : vector->size());
  if (!copy.empty()) std::memcpy(copy.data(), vector->Data(), copy.size() * sizeof(T));
  return copy;
}

Result<TensorInfo> decode_kind(const fb::Kind& kind) {
  constexpr auto kLastDType = static_cast<std::uint8_t>(DType::kF4);
  if (kind.dtype() > kLastDType) {
    return protocol_error(concat("metas name dtype ", int{kind.dtype()},
                                 ", and the last that this version knows is ", int{kLastDType},
                                 ": run the same version on all ranks"));
  }
  // Before it is copied: any number of kinds may share one long shape.
  if (kind.shape() != nullptr && kind.shape()->size() > kMaxDimensions) {
    return protocol_error(concat("metas name a shape of ", kind.shape()->size(), " dimensions"));
  }
  auto info = make_tensor_info({}, DType{kind.dtype()}, copied_items(kind.shape()));
  if (!info) return protocol_error(concat("metas with a wrong shape: ", info.status().message()));
  return info;
}

Status damaged(std::string_view what) { return protocol_error(concat("damaged metas: ", what)); }

Result<std::vector<PoolRegion>> decode_pool_regions(const fb::InstanceData& table) {
  const auto offsets = copied_items(table.pool_region_offsets());
  const auto bytes = copied_items(table.pool_region_bytes());
  const auto ids = copied_items(table.pool_region_ids());
  if (offsets.size() != bytes.size() || offsets.size() != ids.size()) {
    return damaged(concat("rank ", table.rank(), " sent pool regions of ", offsets.size(), ", ",
                          bytes.size(), " and ", ids.size(), " entries"));
  }
  std::vector<PoolRegion> regions;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    regions.push_back({offsets[i], bytes[i], ids[i]});
  }
  if (const Status status = check_pool_regions(regions); !status) {
    return damaged(concat("rank ", table.rank(), ": ", status.message()));
  }
  return regions;
}

}  // namespace

std::vector<std::byte> encode_layout(const Layout& layout) {
  const std::size_t count = layout.tensors.size();
  std::vector<std::uint8_t> suffixes, shared;
  std::vector<std::uint32_t> suffix_lengths, kind_of;
  suffixes.reserve(count * 24);
  shared.reserve(count);
  suffix_lengths.reserve(count);
  kind_of.reserve(count);
  KindTable kinds;
  std::string_view previous;
  for (const TensorInfo& tensor : layout.tensors) {
    const std::size_t prefix = shared_prefix(previous, tensor.name);
    shared.push_back(static_cast<std::uint8_t>(prefix));
    suffix_lengths.push_back(static_cast<std::uint32_t>(tensor.name.size() - prefix));
    suffixes.insert(suffixes.end(), tensor.name.begin() + prefix, tensor.name.end());
    kind_of.push_back(kinds.number_of(tensor));
    previous = tensor.name;
  }
  flatbuffers::FlatBufferBuilder builder(suffixes.size() + 9 * count + 4096);
  std::vector<flatbuffers::Offset<fb::Kind>> kind_tables;
  for (const KindTable::Kind* kind : kinds.in_order()) {
    const auto shape = builder.CreateVector(kind->second);
    kind_tables.push_back(fb::CreateKind(builder, static_cast<std::uint8_t>(kind->first), shape));
  }
  const auto root =
      fb::CreateLayout(builder, builder.CreateVector(suffixes), builder.CreateVector(shared),
                       builder.CreateVector(suffix_lengths), builder.CreateVector(kind_tables),
                       builder.CreateVector(kind_of));
  builder.Finish(root, kLayoutIdentifier);
  return finished(builder);
}

Result<Layout> decode_layout(std::span<const std::byte> bytes) {
  std::vector<std::byte> storage;
  const auto* table = verified_root<fb::Layout>(aligned(bytes, storage), kLayoutIdentifier);
  if (table == nullptr) return damaged("no valid layout");
  std::vector<TensorInfo> kinds;
  if (table->kinds() != nullptr) {
    kinds.reserve(table->kinds()->size());
    for (const fb::Kind* kind : *table->kinds()) {
      CKPT_ASSIGN_OR_RETURN(kinds.emplace_back(), decode_kind(*kind));
    }
  }
  const auto suffixes = items(table->suffixes());
  const auto shared = items(table->shared());
  const auto suffix_lengths = items(table->suffix_lengths());
  const auto kind_of = items(table->kind_of());
  if (shared.size() != suffix_lengths.size() || shared.size() != kind_of.size()) {
    return damaged("a layout whose lists disagree in length");
  }
  std::vector<TensorInfo> tensors(shared.size());
  std::string_view previous;
  std::string_view text(reinterpret_cast<const char*>(suffixes.data()), suffixes.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (shared[i] > previous.size() || suffix_lengths[i] > text.size() ||
        kind_of[i] >= kinds.size()) {
      return damaged("a layout whose lists point outside each other");
    }
    const TensorInfo& kind = kinds[kind_of[i]];
    TensorInfo& tensor = tensors[i];
    tensor.name.reserve(shared[i] + suffix_lengths[i]);
    tensor.name.append(previous.substr(0, shared[i])).append(text.substr(0, suffix_lengths[i]));
    tensor.dtype = kind.dtype;
    tensor.shape = kind.shape;
    tensor.bytes = kind.bytes;
    text.remove_prefix(suffix_lengths[i]);
    previous = tensor.name;
  }
  if (!text.empty()) return damaged("a layout with more text than names");
  Layout layout = Layout::make(std::move(tensors));
  if (const Status names = check_unique_names(layout); !names) {
    return damaged(names.message());
  }
  return layout;
}

std::vector<std::byte> encode_instance_data(const InstanceData& data) {
  flatbuffers::FlatBufferBuilder builder(data.offsets.size() * 16 +
                                         data.transport_descriptor.size() + 1024);
  const auto host_id = builder.CreateString(data.host_id);
  const auto offsets = builder.CreateVector(data.offsets);
  const auto digests = builder.CreateVector(data.digests);
  const auto descriptor =
      builder.CreateVector(reinterpret_cast<const std::uint8_t*>(data.transport_descriptor.data()),
                           data.transport_descriptor.size());
  std::vector<std::uint64_t> region_offsets, region_bytes, region_ids;
  for (const PoolRegion& region : data.pool_regions) {
    region_offsets.push_back(region.pool_offset);
    region_bytes.push_back(region.bytes);
    region_ids.push_back(region.region);
  }
  const auto pool_offsets = builder.CreateVector(region_offsets);
  const auto pool_bytes = builder.CreateVector(region_bytes);
  const auto pool_ids = builder.CreateVector(region_ids);
  const auto address = builder.CreateString(data.network.address);
  const auto devices = builder.CreateVectorOfStrings(data.network.devices);
  builder.Finish(
      fb::CreateInstanceData(builder, data.rank, data.epoch, host_id, data.layout_hash.high,
                             data.layout_hash.low, data.digest_algorithm, offsets, digests,
                             descriptor, pool_offsets, pool_bytes, pool_ids, data.door_region,
                             address, devices, data.network.mbit),
      kInstanceIdentifier);
  return finished(builder);
}

Result<InstanceData> decode_instance_data(std::span<const std::byte> bytes) {
  std::vector<std::byte> storage;
  const auto* table = verified_root<fb::InstanceData>(aligned(bytes, storage), kInstanceIdentifier);
  if (table == nullptr) return damaged("no valid instance data");
  if (table->rank() < 0) return damaged(concat("instance data of rank ", table->rank()));
  auto offsets = copied_items(table->offsets());
  auto digests = copied_items(table->digests());
  if (offsets.size() != digests.size()) {
    return damaged(concat("rank ", table->rank(), " sent ", offsets.size(), " offsets and ",
                          digests.size(), " digests"));
  }
  InstanceData data;
  data.rank = table->rank();
  data.epoch = table->epoch();
  if (table->host_id() != nullptr) data.host_id = table->host_id()->str();
  data.layout_hash = {table->layout_hash_high(), table->layout_hash_low()};
  data.digest_algorithm = table->digest_algorithm();
  data.offsets = std::move(offsets);
  data.digests = std::move(digests);
  const auto descriptor = std::as_bytes(items(table->transport_descriptor()));
  data.transport_descriptor.assign(descriptor.begin(), descriptor.end());
  CKPT_ASSIGN_OR_RETURN(data.pool_regions, decode_pool_regions(*table));
  data.door_region = table->door_region();
  data.network.mbit = table->network_mbit();
  if (table->network_address() != nullptr) data.network.address = table->network_address()->str();
  if (table->network_devices() != nullptr) {
    for (const auto* device : *table->network_devices()) {
      data.network.devices.push_back(device->str());
    }
  }
  return data;
}

}  // namespace ckpt
