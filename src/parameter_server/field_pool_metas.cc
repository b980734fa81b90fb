#include "parameter_server/field_pool_metas.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "checkpoint/order.h"
#include "transport/callback/read_permits.h"
#include "transport/descriptor.h"

namespace ckpt {
namespace {

using Json = nlohmann::json;

constexpr int kMostRanks = 1 << 16;

Status wrong(const std::string& place, std::string_view field, std::string_view expected) {
  return invalid_argument(
      concat("the field's metas: ", place, quoted(field), " must be ", expected));
}

const Json* member(const Json& object, const char* field) {
  return object.is_object() && object.contains(field) ? &object.at(field) : nullptr;
}

Result<std::string> text(const Json& object, const char* field, const std::string& place) {
  const Json* value = member(object, field);
  if (value == nullptr || !value->is_string()) return wrong(place, field, "a string");
  return value->get<std::string>();
}

Result<std::uint64_t> number(const Json& object, const char* field, const std::string& place) {
  const Json* value = member(object, field);
  if (value == nullptr || !value->is_number_unsigned()) {
    return wrong(place, field, "a natural number");
  }
  return value->get<std::uint64_t>();
}

Result<const Json*> list(const Json& object, const char* field, const std::string& place) {
  const Json* value = member(object, field);
  if (value == nullptr || !value->is_array()) return wrong(place, field, "a list");
  return value;
}

/// A tensor and where it lies in the pool.
struct Placed {
  TensorInfo info;
  std::uint64_t offset;
};

Result<TensorInfo> tensor_of(const Json& json, const std::string& place) {
  constexpr std::string_view kPrefix = "torch.";
  CKPT_ASSIGN_OR_RETURN(std::string name, text(json, "name", place));
  CKPT_ASSIGN_OR_RETURN(const std::string dtype_text, text(json, "dtype", place));
  const auto dtype = dtype_text.starts_with(kPrefix)
                         ? dtype_from_torch_name(dtype_text.substr(kPrefix.size()))
                         : std::nullopt;
  if (!dtype) return wrong(place, "dtype", concat("a known dtype, not ", quoted(dtype_text)));
  CKPT_ASSIGN_OR_RETURN(const Json* dims, list(json, "shape", place));
  if (dims->size() > kMaxDimensions) return wrong(place, "shape", "at most 64 numbers");
  std::vector<std::int64_t> shape;
  for (const Json& dim : *dims) {
    if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() > INT64_MAX / 2) {
      return wrong(place, "shape", "a list of natural numbers");
    }
    shape.push_back(dim.get<std::int64_t>());
  }
  // torch counts pairs of F4 elements.
  if (*dtype == DType::kF4 && !shape.empty()) shape.back() *= 2;
  return make_tensor_info(std::move(name), *dtype, std::move(shape));
}

/// Appends the tensors of a buffer, which begins at `pool_offset`.
Status add_tensors(const Json& buffer, std::uint64_t bytes, std::uint64_t pool_offset,
                   const std::string& place, std::vector<Placed>& out) {
  CKPT_ASSIGN_OR_RETURN(const Json* metas, list(buffer, "metas", place));
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < metas->size(); ++i) {
    const std::string here = concat(place, "metas[", i, "]: ");
    CKPT_ASSIGN_OR_RETURN(TensorInfo info, tensor_of((*metas)[i], here));
    CKPT_ASSIGN_OR_RETURN(const std::uint64_t room, number((*metas)[i], "aligned_size", here));
    if (room < info.bytes || room > bytes - at) {
      return wrong(here, "aligned_size",
                   concat("at least the ", info.bytes, " bytes of the tensor and at most the ",
                          bytes - at, " that are left of the buffer, not ", room));
    }
    out.push_back({std::move(info), pool_offset + at});
    at += room;
  }
  return Status();
}

Result<RankMetas> rank_of(const Json& json, int rank, const std::string& place) {
  Descriptor descriptor;
  descriptor.kind = "callback";
  descriptor.instance = kWithoutPermits;
  CKPT_ASSIGN_OR_RETURN(const std::string address, text(json, "p2p_store_addr", place));
  const std::size_t colon = address.rfind(':');
  if (colon == address.npos || address.find(' ') != address.npos) {
    return wrong(place, "p2p_store_addr", concat("HOST:PORT, not ", quoted(address)));
  }
  const auto bytes = std::as_bytes(std::span(address));
  descriptor.address.assign(bytes.begin(), bytes.end());
  CKPT_ASSIGN_OR_RETURN(const Json* buffers, list(json, "memory_buffer_metas_list", place));
  std::vector<Placed> placed;
  RankMetas out;
  InstanceData& data = out.instance;
  std::uint64_t pool_bytes = 0;
  for (std::size_t i = 0; i < buffers->size(); ++i) {
    const std::string here = concat(place, "memory_buffer_metas_list[", i, "]: ");
    CKPT_ASSIGN_OR_RETURN(const std::uint64_t pointer, number((*buffers)[i], "ptr", here));
    CKPT_ASSIGN_OR_RETURN(const std::uint64_t size, number((*buffers)[i], "size", here));
    if (pointer == 0 || pointer + size < pointer || pool_bytes + size < pool_bytes) {
      return wrong(here, "size", "that of a buffer in memory");
    }
    CKPT_RETURN_IF_ERROR(add_tensors((*buffers)[i], size, pool_bytes, here, placed));
    if (size == 0) continue;
    const std::uint64_t region = descriptor.regions.size() + 1;
    descriptor.regions.push_back({region, size, pointer});
    data.pool_regions.push_back({pool_bytes, size, region});
    pool_bytes += size;
  }
  std::vector<TensorInfo> tensors;
  for (const Placed& tensor : placed) tensors.push_back(tensor.info);
  const std::vector<std::uint32_t> order = plan_order(tensors);
  std::vector<TensorInfo> ordered;
  for (const std::uint32_t i : order) {
    ordered.push_back(tensors[i]);
    data.offsets.push_back(placed[i].offset);
  }
  auto layout = std::make_shared<Layout>(Layout::make(std::move(ordered)));
  CKPT_RETURN_IF_ERROR(check_unique_names(*layout));
  data.rank = rank;
  data.layout_hash = layout->hash;
  data.digests.assign(layout->tensors.size(), 0);
  data.transport_descriptor = encode_descriptor(descriptor);
  data.door_region = kNoDoor;
  data.network.address = address.substr(0, colon);
  data.host_id = concat("of the field: ", data.network.address);
  out.layout = std::move(layout);
  return out;
}

}  // namespace

bool are_of_field_pools(const Metas& metas) {
  return std::ranges::any_of(
      metas.ranks, [](const RankMetas& rank) { return rank.instance.door_region == kNoDoor; });
}

Result<Metas> metas_of_field_pools(std::string_view json_text) {
  const Json json = Json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return invalid_argument("metas: not valid JSON");
  if (!json.is_object()) return invalid_argument("the field's metas must be an object");
  std::map<int, const Json*> ranks;
  for (const auto& [key, value] : json.items()) {
    int rank = -1;
    const char* end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, rank);
    if (error != std::errc() || stop != end || rank < 0 || rank >= kMostRanks) {
      return invalid_argument(concat("the field's metas: ", quoted(key), " is no rank"));
    }
    ranks[rank] = &value;
  }
  Metas metas;
  metas.checkpoint_name = kFieldCheckpointName;
  for (const auto& [rank, value] : ranks) {
    CKPT_ASSIGN_OR_RETURN(
        metas.ranks.emplace_back(),
        rank_of(*value, static_cast<int>(metas.ranks.size()), concat("rank ", rank, ": ")));
  }
  return metas;
}

}  // namespace ckpt
