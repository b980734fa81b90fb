#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "checkpoint/json_text.h"
#include "checkpoint/name_table.h"

namespace ckpt {
namespace od = simdjson::ondemand;
namespace {

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

/// The value of one tensor's key, field by field.
class EntryReader {
 public:
  Status read(od::value value) {
    od::object object;
    if (value.get_object().get(object)) return invalid_argument("its value is not an object");
    for (auto field : object) {
      CKPT_ASSIGN_OR_RETURN(const std::string_view key, json_string(field.unescaped_key()));
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

  /// The tensor, once its shape and dtype are proven to fill its span.
  Result<SafetensorsEntry> finish(std::string name) && {
    if (!dtype_) return refuse("dtype", "is missing");
    if (!shape_) return refuse("shape", "is missing");
    if (offsets_ != 2) return refuse("data_offsets", "is missing or does not have two numbers");
    SafetensorsEntry entry;
    CKPT_ASSIGN_OR_RETURN(entry.info,
                          make_tensor_info(std::move(name), *dtype_, std::move(*shape_)));
    entry.begin = begin_;
    if (end_ < begin_) return refuse("data_offsets", concat("end at ", end_, " before ", begin_));
    if (end_ - begin_ != entry.info.bytes) {
      return refuse("data_offsets", concat("span ", end_ - begin_, " bytes, shape and dtype need ",
                                           entry.info.bytes));
    }
    return entry;
  }

 private:
  Status read_dtype(od::value value) {
    if (dtype_) return refuse("dtype", "is there twice");
    std::string_view text;
    if (value.get_string().get(text)) return refuse("dtype", "is not a string");
    dtype_ = dtype_from_name(text);
    if (!dtype_) return unsupported(concat("dtype ", quoted(text), " is unknown to this version"));
    return Status::ok();
  }

  Status read_shape(od::value value) {
    if (shape_) return refuse("shape", "is there twice");
    shape_.emplace();
    return for_each_count(value, "shape", [this](std::uint64_t dim) {
      if (dim > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
        return refuse("shape", concat("has a dimension of ", dim, ", more than 2^63 - 1"));
      }
      shape_->push_back(static_cast<std::int64_t>(dim));
      return Status::ok();
    });
  }

  Status read_offsets(od::value value) {
    if (offsets_ >= 0) return refuse("data_offsets", "is there twice");
    offsets_ = 0;
    return for_each_count(value, "data_offsets", [this](std::uint64_t offset) {
      if (offsets_ == 2) return refuse("data_offsets", "has more than two numbers");
      (offsets_++ == 0 ? begin_ : end_) = offset;
      return Status::ok();
    });
  }

  std::optional<DType> dtype_;
  std::optional<std::vector<std::int64_t>> shape_;
  int offsets_ = -1;  // numbers read; -1 before the field was seen
  std::uint64_t begin_ = 0, end_ = 0;
};

Status read_metadata(od::value value, std::map<std::string, std::string>& metadata) {
  if (bool is_null = false; !value.is_null().get(is_null) && is_null) return Status::ok();
  od::object object;
  if (value.get_object().get(object)) return invalid_argument("is not an object of strings");
  for (auto field : object) {
    CKPT_ASSIGN_OR_RETURN(const std::string_view key, json_string(field.unescaped_key()));
    std::string name(key);
    auto text = field.value().get_string();
    if (text.error() == simdjson::INCORRECT_TYPE) {
      return invalid_argument(concat("the value of ", quoted(name), " is not a string"));
    }
    CKPT_ASSIGN_OR_RETURN(const std::string_view content, json_string(text));
    if (!metadata.try_emplace(name, content).second) {
      return invalid_argument(concat("key ", quoted(name), " is there twice"));
    }
  }
  return Status::ok();
}

Status read_top_level(od::object object, SafetensorsHeader& header) {
  bool metadata_seen = false;
  for (auto field : object) {
    CKPT_ASSIGN_OR_RETURN(const std::string_view key, json_string(field.unescaped_key()));
    od::value value;
    if (const auto error = field.value().get(value)) return json_error(error);
    if (key == kSafetensorsMetadataKey) {
      if (std::exchange(metadata_seen, true))
        return refuse(kSafetensorsMetadataKey, "is there twice");
      Status status = read_metadata(value, header.metadata);
      if (!status.is_ok()) return status.with_context(kSafetensorsMetadataKey);
      continue;
    }
    EntryReader reader;
    Status status = reader.read(value);
    if (status.is_ok()) {
      Result<SafetensorsEntry> entry = std::move(reader).finish(std::string(key));
      if (entry.is_ok()) {
        header.tensors.push_back(std::move(entry).value());
        continue;
      }
      status = entry.status();
    }
    return status.with_context(concat("tensor ", quoted(key)));
  }
  return Status::ok();
}

Status check_names(const std::vector<SafetensorsEntry>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const SafetensorsEntry& entry : tensors) names.push_back(entry.info.name);
  if (const auto twice = NameTable(std::move(names)).duplicate()) {
    return invalid_argument(
        concat("tensor ", quoted(tensors[twice->first].info.name), ": the name is there twice"));
  }
  return Status::ok();
}

Status sort_and_check_spans(std::vector<SafetensorsEntry>& tensors, std::uint64_t data_bytes) {
  const auto before = [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    if (a.begin != b.begin) return a.begin < b.begin;
    return a.info.bytes == 0 && b.info.bytes != 0;
  };
  if (!std::is_sorted(tensors.begin(), tensors.end(), before)) {
    std::stable_sort(tensors.begin(), tensors.end(), before);
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

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> json,
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

  CKPT_ASSIGN_OR_RETURN(const simdjson::padded_string text, padded_json(json));
  od::parser parser;
  od::document document;
  if (const auto error = parser.iterate(text).get(document)) return json_error(error);
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

}  // namespace ckpt
