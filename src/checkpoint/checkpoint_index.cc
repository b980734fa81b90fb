#include "checkpoint/checkpoint_index.h"

#include <filesystem>
#include <map>
#include <utility>

#include "base/strings.h"
#include "checkpoint/json_text.h"
#include "checkpoint/name_index.h"

namespace ckpt {
namespace od = simdjson::ondemand;
namespace {

/// `name` in its shortest form, so that one file has one name.
Result<std::string> file_inside_folder(std::string_view name) {
  const auto refuse = [&](std::string_view reason) {
    return invalid_argument(concat("file name ", quoted(name), " ", reason));
  };
  if (name.empty() || name.find('\0') != std::string_view::npos) return refuse("names no file");
  if (name.front() == '/') return refuse("is absolute: shards lie in the folder of their index");
  for (const std::string& part : split(name, '/')) {
    if (part == "..") return refuse("leaves the folder of the index");
  }
  std::string normal = std::filesystem::path(name).lexically_normal().string();
  if (normal == "." || normal.ends_with('/')) return refuse("names a folder");
  return normal;
}

class IndexReader {
 public:
  Status read_weight_map(od::value value) {
    if (std::exchange(seen_, true)) return invalid_argument("is there twice");
    od::object object;
    if (value.get_object().get(object)) return invalid_argument("is not an object");
    for (auto field : object) {
      CKPT_ASSIGN_OR_RETURN(const std::string_view key, json_key(field));
      std::string tensor(key);
      od::value item;
      if (const auto error = field.value().get(item)) return json_error(error);
      CKPT_ASSIGN_OR_RETURN(const std::uint32_t file, read_file(tensor, item));
      index_.entries.push_back({std::move(tensor), file});
    }
    return Status::ok();
  }

  Result<CheckpointIndex> finish() && {
    if (!seen_) return invalid_argument("has no weight_map");
    CKPT_RETURN_IF_ERROR(check_tensor_names());
    number_files_by_name();
    return std::move(index_);
  }

 private:
  Result<std::uint32_t> read_file(const std::string& tensor, od::value value) {
    const Result<std::string_view> text = json_string(value);
    if (!text.is_ok()) return text.status().with_context(concat("file of tensor ", quoted(tensor)));
    const std::string_view name = *text;
    if (const auto known = files_.find(name); known != files_.end()) return known->second;
    Result<std::string> file = file_inside_folder(name);
    if (!file.is_ok()) {
      return file.status().with_context(concat("tensor ", quoted(tensor)));
    }
    const auto next = static_cast<std::uint32_t>(index_.files.size());
    const auto [normal, is_new] = files_.try_emplace(*file, next);
    if (is_new) index_.files.push_back(*file);
    const std::uint32_t number = normal->second;
    files_.try_emplace(std::string(name), number);
    return number;
  }

  Status check_tensor_names() const {
    NameIndex seen(index_.entries.size());
    for (const auto& entry : index_.entries) {
      if (!seen.insert(entry.tensor, name_hash(entry.tensor)).second) {
        return invalid_argument(
            concat("tensor ", quoted(entry.tensor), ": the name is there twice"));
      }
    }
    return Status::ok();
  }

  void number_files_by_name() {
    std::vector<std::uint32_t> number(index_.files.size());
    std::map<std::string, std::uint32_t> sorted;
    for (std::uint32_t i = 0; i < index_.files.size(); ++i) sorted.emplace(index_.files[i], i);
    index_.files.clear();
    for (const auto& [file, old_number] : sorted) {
      number[old_number] = static_cast<std::uint32_t>(index_.files.size());
      index_.files.push_back(file);
    }
    for (auto& entry : index_.entries) entry.file = number[entry.file];
  }

  bool seen_ = false;
  CheckpointIndex index_;
  std::map<std::string, std::uint32_t, std::less<>> files_;  // as written and in shortest form
};

}  // namespace

Result<CheckpointIndex> parse_checkpoint_index(std::span<const std::byte> json) {
  CKPT_ASSIGN_OR_RETURN(const simdjson::padded_string text, padded_json(json));
  od::parser parser;
  od::document document;
  if (const auto error = parser.iterate(text).get(document)) return json_error(error);
  od::object object;
  if (const auto error = document.get_object().get(object)) return json_error(error);
  IndexReader reader;
  for (auto field : object) {
    CKPT_ASSIGN_OR_RETURN(const std::string_view key, json_key(field));
    od::value value;
    if (const auto error = field.value().get(value)) return json_error(error);
    if (key == "weight_map") {
      Status status = reader.read_weight_map(value);
      if (!status.is_ok()) return status.with_context("weight_map");
    } else {
      CKPT_RETURN_IF_ERROR(check_ignored_value(value));
    }
  }
  // Past the last token there is no location.
  if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {
    return invalid_argument("not valid JSON: text behind the index's object");
  }
  return std::move(reader).finish();
}

}  // namespace ckpt
