#include "parameter_server/field_metas_json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/strings.h"
#include "parameter_server/field_pool_metas.h"
#include "parameter_server/hex_text.h"

namespace ckpt {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPlaceBegin = "checkpoint-engine/1/";
constexpr std::uint64_t kAlignment = 256;  // of tensors in the field's buffers
constexpr std::int64_t kMaxRanks = 1 << 16;

/// What a rank's PLACE says.
struct Place {
  std::int64_t ranks = 0;
  std::string checkpoint;
  InstanceData data;
};

std::string place_text(const Metas& metas, const InstanceData& data) {
  return concat(kPlaceBegin, metas.ranks.size(), "/",
                to_hex(std::as_bytes(std::span(metas.checkpoint_name))), "/",
                to_hex(encode_instance_data(data)));
}

std::optional<Place> read_place(std::string_view text) {
  const auto pieces = split(text.substr(kPlaceBegin.size()), '/');
  if (pieces.size() != 3) return std::nullopt;
  const auto ranks = parse_int(pieces[0]);
  const auto name = from_hex(pieces[1]);
  const auto bytes = from_hex(pieces[2]);
  if (!ranks || *ranks < 1 || *ranks > kMaxRanks || !name || !bytes) return std::nullopt;
  auto data = decode_instance_data(*bytes);
  if (!data) return std::nullopt;
  return Place{*ranks, std::string(reinterpret_cast<const char*>(name->data()), name->size()),
               std::move(*data)};
}

/// torch counts pairs of F4 elements, safetensors files single ones.
Json torch_shape(const TensorInfo& tensor) {
  auto shape = tensor.shape;
  if (tensor.dtype == DType::kF4 && !shape.empty()) shape.back() /= 2;
  return shape;
}

Json rank_to_json(const Metas& metas, const RankMetas& rank) {
  Json tensors = Json::array();
  std::uint64_t size = 0;
  for (const TensorInfo& tensor : rank.layout->tensors) {
    const std::uint64_t aligned = (tensor.bytes + kAlignment - 1) / kAlignment * kAlignment;
    size += aligned;
    tensors.push_back({{"name", tensor.name},
                       {"dtype", concat("torch.", torch_dtype_name(tensor.dtype))},
                       {"shape", torch_shape(tensor)},
                       {"aligned_size", aligned}});
  }
  Json buffer = {{"metas", std::move(tensors)}, {"ptr", 0}, {"size", size}};
  Json buffers = Json::array();
  buffers.push_back(std::move(buffer));
  return {{"p2p_store_addr", place_text(metas, rank.instance)},
          {"memory_buffer_metas_list", std::move(buffers)},
          {"rdma_device", join(rank.instance.network.devices, ",")}};
}

/// One rank's entry, and where it stands, for errors.
class Entry {
 public:
  Entry(int rank, const Json& json) : rank_(rank), json_(json) {}

  Result<Place> place() const {
    const Json* text = member(json_, "p2p_store_addr");
    if (text == nullptr || !text->is_string() ||
        !text->get_ref<const std::string&>().starts_with(kPlaceBegin)) {
      return unsupported(
          concat("metas of rank ", rank_,
                 ": \"p2p_store_addr\" is not of this engine: the memory of the Python package "
                 "checkpoint-engine is read by Mooncake; export metas from a job of this engine"));
    }
    auto found = read_place(text->get_ref<const std::string&>());
    if (!found) return wrong("p2p_store_addr", "as it was exported");
    return std::move(*found);
  }

  Result<Layout> layout() const {
    const Json* buffers = member(json_, "memory_buffer_metas_list");
    if (buffers == nullptr || !buffers->is_array())
      return wrong("memory_buffer_metas_list", "a list");
    std::vector<TensorInfo> tensors;
    for (const Json& buffer : *buffers) {
      const Json* metas = member(buffer, "metas");
      if (metas == nullptr || !metas->is_array()) return wrong("metas", "a list");
      for (const Json& each : *metas) {
        CKPT_ASSIGN_OR_RETURN(tensors.emplace_back(), tensor(each));
      }
    }
    Layout layout = Layout::make(std::move(tensors));
    CKPT_RETURN_IF_ERROR(check_unique_names(layout));
    return layout;
  }

  Status wrong(std::string_view field, std::string_view expected) const {
    return invalid_argument(
        concat("metas of rank ", rank_, ": ", quoted(field), " must be ", expected));
  }

 private:
  static const Json* member(const Json& object, const char* name) {
    return object.is_object() && object.contains(name) ? &object.at(name) : nullptr;
  }

  Result<TensorInfo> tensor(const Json& json) const {
    const Json* name = member(json, "name");
    if (name == nullptr || !name->is_string()) return wrong("name", "a string");
    const Json* type = member(json, "dtype");
    const auto dtype = type != nullptr && type->is_string()
                           ? dtype_from_torch_name(type->get_ref<const std::string&>())
                           : std::nullopt;
    if (!dtype) return wrong("dtype", "one of torch's that this engine knows");
    const Json* dims = member(json, "shape");
    if (dims == nullptr || !dims->is_array() || dims->size() > kMaxDimensions) {
      return wrong("shape", "a list of at most 64 numbers");
    }
    std::vector<std::int64_t> shape;
    for (const Json& dim : *dims) {
      if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() > INT64_MAX / 2) {
        return wrong("shape", "a list of natural numbers");
      }
      shape.push_back(dim.get<std::int64_t>());
    }
    if (*dtype == DType::kF4 && !shape.empty()) shape.back() *= 2;
    return make_tensor_info(name->get<std::string>(), *dtype, std::move(shape));
  }

  const int rank_;
  const Json& json_;
};

Result<RankMetas> rank_from_json(int rank, const Json& json, Place& place) {
  const Entry entry(rank, json);
  CKPT_ASSIGN_OR_RETURN(place, entry.place());
  CKPT_ASSIGN_OR_RETURN(Layout layout, entry.layout());
  if (place.data.rank != rank || place.data.layout_hash != layout.hash ||
      place.data.offsets.size() != layout.tensors.size()) {
    return entry.wrong("p2p_store_addr", "that of this rank with these tensors, in this order");
  }
  RankMetas out;
  out.layout = std::make_shared<const Layout>(std::move(layout));
  out.instance = std::move(place.data);
  return out;
}

bool is_of_this_engine(const Json& entry) {
  if (!entry.is_object() || !entry.contains("p2p_store_addr")) return false;
  const Json& text = entry.at("p2p_store_addr");
  return text.is_string() && text.get_ref<const std::string&>().starts_with(kPlaceBegin);
}

/// Ranks that are not there have no tensors.
void add_empty_ranks(Metas& metas, std::size_t until) {
  const auto nothing = std::make_shared<const Layout>(Layout::make({}));
  while (metas.ranks.size() < until) {
    RankMetas& rank = metas.ranks.emplace_back();
    rank.layout = nothing;
    rank.instance.rank = static_cast<int>(metas.ranks.size()) - 1;
    rank.instance.layout_hash = nothing->hash;
  }
}

}  // namespace

std::string metas_to_field_json(const Metas& metas) {
  Json json = Json::object();
  for (const RankMetas& rank : metas.ranks) {
    if (rank.layout->tensors.empty()) continue;
    json[std::to_string(rank.instance.rank)] = rank_to_json(metas, rank);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<Metas> metas_from_field_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return invalid_argument("metas: not a JSON object");
  std::map<int, const Json*> entries;
  for (const auto& [key, entry] : json.items()) {
    const auto rank = parse_int(key);
    if (!rank || *rank < 0 || *rank >= kMaxRanks) {
      return invalid_argument(concat("metas: no \"format\" of this engine, and ", quoted(key),
                                     " is no rank, as in the answer of GET /v1/metas"));
    }
    if (!entries.emplace(static_cast<int>(*rank), &entry).second) {
      return invalid_argument(concat("metas: rank ", *rank, " is there twice"));
    }
  }
  if (entries.empty()) return invalid_argument("metas: no rank has any tensor");
  if (!is_of_this_engine(*entries.begin()->second)) return metas_of_field_pools(text);
  Metas metas;
  Place first;
  for (const auto& [rank, entry] : entries) {
    Place place;
    CKPT_ASSIGN_OR_RETURN(RankMetas read, rank_from_json(rank, *entry, place));
    if (metas.ranks.empty()) first = place;
    if (place.checkpoint != first.checkpoint || place.ranks != first.ranks || rank >= place.ranks) {
      return invalid_argument(concat("metas: the entry of rank ", rank,
                                     " is of another export than the one of rank ",
                                     entries.begin()->first));
    }
    add_empty_ranks(metas, static_cast<std::size_t>(rank));
    metas.ranks.push_back(std::move(read));
  }
  add_empty_ranks(metas, static_cast<std::size_t>(first.ranks));
  metas.checkpoint_name = first.checkpoint;
  const std::uint32_t algorithm =
      metas.ranks[static_cast<std::size_t>(entries.begin()->first)].instance.digest_algorithm;
  for (RankMetas& rank : metas.ranks) {
    if (rank.layout->tensors.empty()) rank.instance.digest_algorithm = algorithm;
  }
  return metas;
}

}  // namespace ckpt
