#include "parameter_server/metas_json.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/strings.h"
#include "parameter_server/field_metas_json.h"
#include "parameter_server/hex_text.h"
#include "parameter_server/joined_metas.h"

namespace ckpt {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "checkpoint-engine metas";
constexpr std::uint64_t kVersion = 1;

std::string hex(std::uint64_t value) { return LayoutHash{0, value}.to_string().substr(16); }

Json layout_to_json(const Layout& layout) {
  Json tensors = Json::array();
  for (const TensorInfo& tensor : layout.tensors) {
    tensors.push_back(
        {{"name", tensor.name}, {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}});
  }
  return {{"hash", layout.hash.to_string()}, {"tensors", std::move(tensors)}};
}

Json rank_to_json(const InstanceData& data, std::size_t layout) {
  Json digests = Json::array();
  for (const std::uint64_t digest : data.digests) digests.push_back(hex(digest));
  Json regions = Json::array();
  for (const PoolRegion& region : data.pool_regions) {
    regions.push_back({{"pool_offset", region.pool_offset},
                       {"bytes", region.bytes},
                       {"region", hex(region.region)}});
  }
  return {{"layout", layout},
          {"epoch", hex(data.epoch)},
          {"host_id", data.host_id},
          {"digest_algorithm", data.digest_algorithm},
          {"offsets", data.offsets},
          {"digests", std::move(digests)},
          {"transport_descriptor", to_hex(data.transport_descriptor)},
          {"pool_regions", std::move(regions)},
          {"door_region", hex(data.door_region)},
          {"network",
           {{"address", data.network.address},
            {"devices", data.network.devices},
            {"mbit", data.network.mbit}}}};
}

/// An object of the text, and where it stands, for errors.
class Fields {
 public:
  Fields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {}

  Status wrong(std::string_view field, std::string_view expected) const {
    return invalid_argument(concat("metas: ", place_, quoted(field), " must be ", expected));
  }
  bool has(const char* field) const { return object_.is_object() && object_.contains(field); }

  Result<std::string> text(const char* field) const {
    const Json* value = find(field);
    if (value == nullptr || !value->is_string()) return wrong(field, "a string");
    return value->get<std::string>();
  }
  Result<std::uint64_t> number(const char* field) const {
    const Json* value = find(field);
    if (value == nullptr || !value->is_number_unsigned()) return wrong(field, "a natural number");
    return value->get<std::uint64_t>();
  }
  Result<std::uint64_t> hex64(const char* field) const {
    const Json* value = find(field);
    if (value == nullptr) return wrong(field, kHex64);
    return hex64(*value, field);
  }
  Result<std::uint64_t> hex64(const Json& value, const char* field) const {
    if (!value.is_string()) return wrong(field, kHex64);
    const auto& digits = value.get_ref<const std::string&>();
    std::uint64_t number = 0;
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, number, 16);
    if (error != std::errc() || stop != end) return wrong(field, kHex64);
    return number;
  }
  /// The elements, each of which the caller checks.
  Result<const Json*> list(const char* field) const {
    const Json* value = find(field);
    if (value == nullptr || !value->is_array()) return wrong(field, "a list");
    return value;
  }

 private:
  static constexpr std::string_view kHex64 = "a string of up to 16 hexadecimal digits";

  const Json* find(const char* field) const { return has(field) ? &object_.at(field) : nullptr; }

  const Json& object_;
  std::string place_;
};

Result<std::vector<std::byte>> bytes_of_hex(const Fields& fields, const char* field) {
  CKPT_ASSIGN_OR_RETURN(const std::string digits, fields.text(field));
  auto bytes = from_hex(digits);
  if (!bytes) return fields.wrong(field, "an even number of hexadecimal digits");
  return std::move(*bytes);
}

Result<TensorInfo> tensor_from_json(const Json& json, const std::string& place) {
  const Fields fields(json, place);
  CKPT_ASSIGN_OR_RETURN(std::string name, fields.text("name"));
  CKPT_ASSIGN_OR_RETURN(const std::string dtype_text, fields.text("dtype"));
  const auto dtype = dtype_from_name(dtype_text);
  if (!dtype) return fields.wrong("dtype", concat("a known dtype, not ", quoted(dtype_text)));
  CKPT_ASSIGN_OR_RETURN(const Json* dims, fields.list("shape"));
  if (dims->size() > kMaxDimensions) return fields.wrong("shape", "at most 64 numbers");
  std::vector<std::int64_t> shape;
  for (const Json& dim : *dims) {
    if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() > INT64_MAX) {
      return fields.wrong("shape", "a list of natural numbers");
    }
    shape.push_back(dim.get<std::int64_t>());
  }
  return make_tensor_info(std::move(name), *dtype, std::move(shape));
}

Result<std::shared_ptr<const Layout>> layout_from_json(const Json& json, const std::string& place) {
  const Fields fields(json, place);
  CKPT_ASSIGN_OR_RETURN(const std::string hash, fields.text("hash"));
  CKPT_ASSIGN_OR_RETURN(const Json* list, fields.list("tensors"));
  std::vector<TensorInfo> tensors;
  tensors.reserve(list->size());
  for (std::size_t i = 0; i < list->size(); ++i) {
    CKPT_ASSIGN_OR_RETURN(tensors.emplace_back(),
                          tensor_from_json((*list)[i], concat(place, "tensors[", i, "]: ")));
  }
  auto layout = std::make_shared<Layout>(Layout::make(std::move(tensors)));
  CKPT_RETURN_IF_ERROR(check_unique_names(*layout));
  if (layout->hash.to_string() != hash) {
    return fields.wrong("hash", concat(layout->hash.to_string(), " for these tensors, not ", hash));
  }
  return std::shared_ptr<const Layout>(std::move(layout));
}

Result<std::vector<PoolRegion>> regions_from_json(const Fields& fields, const std::string& place) {
  std::vector<PoolRegion> regions;
  if (!fields.has("pool_regions")) return regions;
  CKPT_ASSIGN_OR_RETURN(const Json* list, fields.list("pool_regions"));
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Fields entry((*list)[i], concat(place, "pool_regions[", i, "]: "));
    PoolRegion region;
    CKPT_ASSIGN_OR_RETURN(region.pool_offset, entry.number("pool_offset"));
    CKPT_ASSIGN_OR_RETURN(region.bytes, entry.number("bytes"));
    CKPT_ASSIGN_OR_RETURN(region.region, entry.hex64("region"));
    regions.push_back(region);
  }
  CKPT_RETURN_IF_ERROR(check_pool_regions(regions).with_context(concat("metas: ", place)));
  return regions;
}

Result<NetworkPlace> network_from_json(const Json& json, const std::string& place) {
  const Fields fields(json, concat(place, "network: "));
  NetworkPlace network;
  CKPT_ASSIGN_OR_RETURN(network.address, fields.text("address"));
  CKPT_ASSIGN_OR_RETURN(network.mbit, fields.number("mbit"));
  CKPT_ASSIGN_OR_RETURN(const Json* devices, fields.list("devices"));
  for (const Json& device : *devices) {
    if (!device.is_string()) return fields.wrong("devices", "a list of strings");
    network.devices.push_back(device.get<std::string>());
  }
  return network;
}

Result<RankMetas> rank_from_json(const Json& json, int rank,
                                 const std::vector<std::shared_ptr<const Layout>>& layouts) {
  const std::string place = concat("ranks[", rank, "]: ");
  const Fields fields(json, place);
  RankMetas out;
  CKPT_ASSIGN_OR_RETURN(const std::uint64_t layout, fields.number("layout"));
  if (layout >= layouts.size()) return fields.wrong("layout", "an index into \"layouts\"");
  out.layout = layouts[layout];
  InstanceData& data = out.instance;
  data.rank = rank;
  data.layout_hash = out.layout->hash;
  CKPT_ASSIGN_OR_RETURN(data.epoch, fields.hex64("epoch"));
  CKPT_ASSIGN_OR_RETURN(data.host_id, fields.text("host_id"));
  CKPT_ASSIGN_OR_RETURN(const std::uint64_t algorithm, fields.number("digest_algorithm"));
  if (algorithm > UINT32_MAX) return fields.wrong("digest_algorithm", "below 2^32");
  data.digest_algorithm = static_cast<std::uint32_t>(algorithm);

  CKPT_ASSIGN_OR_RETURN(const Json* offsets, fields.list("offsets"));
  for (const Json& offset : *offsets) {
    if (!offset.is_number_unsigned()) return fields.wrong("offsets", "a list of natural numbers");
    data.offsets.push_back(offset.get<std::uint64_t>());
  }
  CKPT_ASSIGN_OR_RETURN(const Json* digests, fields.list("digests"));
  for (const Json& digest : *digests) {
    CKPT_ASSIGN_OR_RETURN(data.digests.emplace_back(), fields.hex64(digest, "digests"));
  }
  const std::size_t count = out.layout->tensors.size();
  if (data.offsets.size() != count) return fields.wrong("offsets", concat(count, " numbers"));
  if (data.digests.size() != count) return fields.wrong("digests", concat(count, " digests"));

  if (fields.has("transport_descriptor")) {
    CKPT_ASSIGN_OR_RETURN(data.transport_descriptor, bytes_of_hex(fields, "transport_descriptor"));
  }
  CKPT_ASSIGN_OR_RETURN(data.pool_regions, regions_from_json(fields, place));
  if (fields.has("door_region")) {
    CKPT_ASSIGN_OR_RETURN(data.door_region, fields.hex64("door_region"));
  }
  if (fields.has("network")) {
    CKPT_ASSIGN_OR_RETURN(data.network, network_from_json(json.at("network"), place));
  }
  return out;
}

}  // namespace

std::string metas_to_json(const Metas& metas) {
  Json layouts = Json::array();
  Json ranks = Json::array();
  std::unordered_map<std::string, std::size_t> layout_of_hash;
  for (const RankMetas& rank : metas.ranks) {
    const auto [at, is_new] =
        layout_of_hash.try_emplace(rank.layout->hash.to_string(), layouts.size());
    if (is_new) layouts.push_back(layout_to_json(*rank.layout));
    ranks.push_back(rank_to_json(rank.instance, at->second));
  }
  const Json json = {{"format", kFormat},
                     {"version", kVersion},
                     {"checkpoint", metas.checkpoint_name},
                     {"layouts", std::move(layouts)},
                     {"ranks", std::move(ranks)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

namespace {

Result<Metas> metas_of_job(const Json& json) {
  const Fields fields(json, "");
  const auto format = fields.text("format");
  if (!format || *format != kFormat) return fields.wrong("format", quoted(kFormat));
  CKPT_ASSIGN_OR_RETURN(const std::uint64_t version, fields.number("version"));
  if (version != kVersion) {
    return unsupported(concat("metas of version ", version, "; this program reads version ",
                              kVersion, ": use the version that wrote them"));
  }
  Metas metas;
  CKPT_ASSIGN_OR_RETURN(metas.checkpoint_name, fields.text("checkpoint"));
  CKPT_ASSIGN_OR_RETURN(const Json* layout_list, fields.list("layouts"));
  std::vector<std::shared_ptr<const Layout>> layouts;
  for (std::size_t i = 0; i < layout_list->size(); ++i) {
    CKPT_ASSIGN_OR_RETURN(layouts.emplace_back(),
                          layout_from_json((*layout_list)[i], concat("layouts[", i, "]: ")));
  }
  CKPT_ASSIGN_OR_RETURN(const Json* rank_list, fields.list("ranks"));
  for (std::size_t i = 0; i < rank_list->size(); ++i) {
    CKPT_ASSIGN_OR_RETURN(metas.ranks.emplace_back(),
                          rank_from_json((*rank_list)[i], static_cast<int>(i), layouts));
  }
  return metas;
}

Result<Metas> metas_of_jobs(const Json& list) {
  std::vector<Metas> parts;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& part = list[i];
    const bool of_field = part.is_object() && !part.contains("format");
    auto metas = of_field ? metas_from_field_json(part.dump()) : metas_of_job(part);
    if (!metas) return metas.status().with_context(concat("metas ", i + 1, " of ", list.size()));
    parts.push_back(std::move(*metas));
  }
  return join_metas(std::move(parts));
}

}  // namespace

Result<Metas> metas_from_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return invalid_argument("metas: not valid JSON");
  if (json.is_array()) return metas_of_jobs(json);
  if (json.is_object() && !json.contains("format")) return metas_from_field_json(text);
  return metas_of_job(json);
}

}  // namespace ckpt
