#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "checkpoint/json_text.h"
#include "checkpoint/name_index.h"

namespace ckpt {
namespace od = simdjson::ondemand;
namespace {

static_assert(kJsonPadding >= simdjson::SIMDJSON_PADDING);

// JSON of a tensor with a name of 40 characters and two dimensions.
constexpr std::size_t kUsualEntryBytes = 110;

Status refuse(std::string_view field, std::string_view rule) {
  return invalid_argument(concat(field, " ", rule));
}

/// Calls `take(element)` with every element of the array `value` that must hold whole numbers from
/// 0 to 2^64 - 1; `take` may refuse one.
template <typename Take>
Status for_each_count(od::value value, std::string_view field, Take take) {
  od::array array;
  if (value.get_array().get(array)) return refuse(field, "is not an array");
  for (auto element : array) {
    std::uint64_t count = 0;
    if (const auto error = element.get_uint64().get(count)) {
      const bool bad_json = error != simdjson::INCORRECT_TYPE && error != simdjson::NUMBER_ERROR;
      return bad_json ? json_error(error)
                      : refuse(field, "holds something else than whole numbers");
    }
    CKPT_RETURN_IF_ERROR(take(count));
  }
  return Status::ok();
}

/// The value of one tensor's key, field by field. One reader serves all tensors of a header.
class EntryReader {
 public:
  /// Appends the tensor, once its shape and dtype are proven to fill its span.
  Status read(std::string_view name, od::value value, std::vector<SafetensorsEntry>& tensors) {
    dtype_.reset();
    shape_seen_ = offsets_seen_ = false;
    CKPT_RETURN_IF_ERROR(read_fields(value));
    return finish(name, tensors);
  }

 private:
  Status read_fields(od::value value) {
    od::object object;
    if (value.get_object().get(object)) return invalid_argument("its value is not an object");
    for (auto field : object) {
      CKPT_ASSIGN_OR_RETURN(const std::string_view key, json_key(field));
      od::value content;
      if (const auto error = field.value().get(content)) return json_error(error);
      if (key == "dtype") {
        CKPT_RETURN_IF_ERROR(read_dtype(content));
      } else if (key == "shape") {
        CKPT_RETURN_IF_ERROR(read_shape(content));
      } else if (key == "data_offsets") {
        CKPT_RETURN_IF_ERROR(read_offsets(content));
      } else {
        CKPT_RETURN_IF_ERROR(check_ignored_value(content));
      }
    }
    return Status::ok();
  }

  Status read_dtype(od::value value) {
    if (dtype_) return refuse("dtype", "is there twice");
    const Result<std::string_view> text = json_string(value);
    if (!text.is_ok()) return text.status().with_context("dtype");
    dtype_ = dtype_from_name(*text);
    if (!dtype_) return unsupported(concat("dtype ", quoted(*text), " is unknown to this version"));
    return Status::ok();
  }

  Status read_shape(od::value value) {
    if (std::exchange(shape_seen_, true)) return refuse("shape", "is there twice");
    shape_.clear();
    return for_each_count(value, "shape", [this](std::uint64_t dim) {
      if (dim > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
        return refuse("shape", concat("has a dimension of ", dim, ", more than 2^63 - 1"));
      }
      shape_.push_back(static_cast<std::int64_t>(dim));
      return Status::ok();
    });
  }

  Status read_offsets(od::value value) {
    if (std::exchange(offsets_seen_, true)) return refuse("data_offsets", "is there twice");
    std::size_t count = 0;
    CKPT_RETURN_IF_ERROR(for_each_count(value, "data_offsets", [&](std::uint64_t offset) {
      if (count < 2) (count == 0 ? begin_ : end_) = offset;
      ++count;
      return Status::ok();
    }));
    return count == 2 ? Status::ok()
                      : refuse("data_offsets", concat("has ", count, " numbers, not 2"));
  }

  Status finish(std::string_view name, std::vector<SafetensorsEntry>& tensors) const {
    if (!dtype_) return refuse("dtype", "is missing");
    if (!shape_seen_) return refuse("shape", "is missing");
    if (!offsets_seen_) return refuse("data_offsets", "is missing");
    SafetensorsEntry& entry = tensors.emplace_back();
    CKPT_ASSIGN_OR_RETURN(entry.info, make_tensor_info(std::string(name), *dtype_, shape_));
    entry.begin = begin_;
    if (end_ < begin_) return refuse("data_offsets", concat("end at ", end_, " before ", begin_));
    if (end_ - begin_ != entry.info.bytes) {
      return refuse("data_offsets", concat("span ", end_ - begin_, " bytes, shape and dtype need ",
                                           entry.info.bytes));
    }
    return Status::ok();
  }

  std::optional<DType> dtype_;
  bool shape_seen_ = false, offsets_seen_ = false;
  std::vector<std::int64_t> shape_;
  std::uint64_t begin_ = 0, end_ = 0;
};

Status read_metadata(od::value value, std::map<std::string, std::string>& metadata) {
  if (bool is_null = false; !value.is_null().get(is_null) && is_null) return Status::ok();
  od::object object;
  if (value.get_object().get(object)) return invalid_argument("is not an object of strings");
  for (auto field : object) {
    CKPT_ASSIGN_OR_RETURN(const std::string_view key, json_key(field));
    std::string name(key);
    od::value item;
    if (const auto error = field.value().get(item)) return json_error(error);
    const Result<std::string_view> content = json_string(item);
    if (!content.is_ok()) return content.status().with_context(concat("value of ", quoted(name)));
    if (!metadata.try_emplace(name, *content).second) {
      return invalid_argument(concat("key ", quoted(name), " is there twice"));
    }
  }
  return Status::ok();
}

Status read_top_level(od::object object, SafetensorsHeader& header) {
  EntryReader reader;
  bool metadata_seen = false;
  for (auto field : object) {
    CKPT_ASSIGN_OR_RETURN(const std::string_view key, json_key(field));
    od::value value;
    if (const auto error = field.value().get(value)) return json_error(error);
    if (key == kSafetensorsMetadataKey) {
      if (std::exchange(metadata_seen, true))
        return refuse(kSafetensorsMetadataKey, "is there twice");
      Status status = read_metadata(value, header.metadata);
      if (!status.is_ok()) return status.with_context(kSafetensorsMetadataKey);
      continue;
    }
    Status status = reader.read(key, value, header.tensors);
    if (!status.is_ok()) return status.with_context(concat("tensor ", quoted(key)));
  }
  return Status::ok();
}

Status check_names(const std::vector<SafetensorsEntry>& tensors) {
  NameIndex seen(tensors.size());
  constexpr std::size_t kAhead = 8;
  std::array<std::uint64_t, kAhead> hashes{};  // of the names that come next
  const auto hash_ahead = [&](std::size_t i) {
    if (i >= tensors.size()) return;
    hashes[i % kAhead] = name_hash(tensors[i].info.name);
    seen.prefetch(hashes[i % kAhead]);
  };
  for (std::size_t i = 0; i < kAhead; ++i) hash_ahead(i);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& info = tensors[i].info;
    const std::uint64_t hash = hashes[i % kAhead];
    hash_ahead(i + kAhead);
    if (!seen.insert(info.name, hash).second) {
      return invalid_argument(concat("tensor ", quoted(info.name), ": the name is there twice"));
    }
  }
  return Status::ok();
}

Status sort_and_check_spans(std::vector<SafetensorsEntry>& tensors, std::uint64_t data_bytes) {
  const auto before = [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    if (a.begin != b.begin) return a.begin < b.begin;
    const bool a_empty = a.info.bytes == 0, b_empty = b.info.bytes == 0;
    return a_empty && b_empty ? a.info.name < b.info.name : a_empty && !b_empty;
  };
  if (!std::is_sorted(tensors.begin(), tensors.end(), before)) {
    std::sort(tensors.begin(), tensors.end(), before);
  }
  std::uint64_t expected = 0;
  for (const SafetensorsEntry& entry : tensors) {
    if (entry.begin != expected) {
      return invalid_argument(concat("tensor ", quoted(entry.info.name), ": data_offsets begin at ",
                                     entry.begin, ", the tensor before ends at ", expected,
                                     entry.begin < expected ? " (overlap)" : " (gap)"));
    }
    // finish() has shown that begin + bytes does not wrap.
    expected = entry.begin + entry.info.bytes;
  }
  if (expected != data_bytes) {
    return invalid_argument(
        concat("the tensors need ", expected, " bytes of data, the file has ", data_bytes,
               expected > data_bytes ? ": it is cut short" : " (bytes behind them)"));
  }
  return Status::ok();
}

}  // namespace

Result<SafetensorsHeader> parse_padded_safetensors_header(std::span<const std::byte> json,
                                                          std::uint64_t data_bytes) {
  if (json.size() > kMaxSafetensorsHeaderBytes) {
    return invalid_argument(concat("a header of ", json.size(), " bytes is over the limit of ",
                                   kMaxSafetensorsHeaderBytes));
  }
  if (json.empty() || json.front() != std::byte{'{'}) {
    return invalid_argument("the header does not begin with {");
  }
  SafetensorsHeader header;
  header.data_start = kSafetensorsPrefixBytes + json.size();
  header.data_bytes = data_bytes;
  header.tensors.reserve(json.size() / kUsualEntryBytes);

  od::parser parser;
  od::document document;
  const auto* text = reinterpret_cast<const char*>(json.data());
  if (const auto error =
          parser.iterate(text, json.size(), json.size() + kJsonPadding).get(document)) {
    return json_error(error);
  }
  od::object object;
  if (const auto error = document.get_object().get(object)) return json_error(error);
  CKPT_RETURN_IF_ERROR(read_top_level(object, header));
  // Past the last token there is no location.
  if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {
    return invalid_argument("not valid JSON: text behind the header's object");
  }
  CKPT_RETURN_IF_ERROR(check_names(header.tensors));
  CKPT_RETURN_IF_ERROR(sort_and_check_spans(header.tensors, data_bytes));
  return header;
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> json,
                                                   std::uint64_t data_bytes) {
  CKPT_ASSIGN_OR_RETURN(const simdjson::padded_string text, padded_json(json));
  return parse_padded_safetensors_header(std::as_bytes(std::span(text.data(), text.size())),
                                         data_bytes);
}

}  // namespace ckpt
