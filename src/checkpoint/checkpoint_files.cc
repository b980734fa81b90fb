#include "checkpoint/checkpoint_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/log.h"
#include "base/parallel.h"
#include "base/strings.h"
#include "checkpoint/checkpoint_index.h"
#include "checkpoint/file_bytes.h"
#include "checkpoint/name_index.h"
#include "checkpoint/safetensors_header.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFileSuffix = ".safetensors";
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr int kMaxReaders = 16;
// 200,000 tensors make an index of about 20 MB.
constexpr std::uint64_t kMaxIndexBytes = 1'000'000'000;

struct Folder {
  std::vector<std::string> files;    // names, sorted as bytes
  std::vector<std::string> indexes;  // likewise
};

Result<Folder> list_folder(const std::string& path) {
  Folder folder;
  std::error_code error;
  fs::directory_iterator entry(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.starts_with('.')) continue;
    // A folder with such a name is not ours; a broken link is, and its error is told when it is
    // opened.
    std::error_code ignored;
    if (entry->is_directory(ignored)) continue;
    if (name.ends_with(kFileSuffix))
      folder.files.push_back(std::move(name));
    else if (name.ends_with(kIndexSuffix))
      folder.indexes.push_back(std::move(name));
  }
  if (error) return errno_error(concat(path, ": list folder"), error.value());
  std::sort(folder.files.begin(), folder.files.end());
  std::sort(folder.indexes.begin(), folder.indexes.end());
  return folder;
}

/// All headers, by several threads. Of several bad files the first is the error, on every host.
Result<std::vector<SafetensorsHeader>> read_headers(const std::vector<std::string>& paths) {
  std::vector<SafetensorsHeader> headers(paths.size());
  std::vector<Status> outcomes(paths.size());
  const int threads = std::min(
      {static_cast<int>(std::min<std::size_t>(paths.size(), kMaxReaders)), available_processors()});
  ThreadPool pool(std::max(1, threads));
  CKPT_RETURN_IF_ERROR(pool.for_each(paths.size(), [&](std::size_t i) {
    Result<SafetensorsHeader> header = read_safetensors_header(paths[i]);
    if (header.is_ok())
      headers[i] = std::move(header).value();
    else
      outcomes[i] = header.status();
    return Status::ok();
  }));
  for (const Status& outcome : outcomes) CKPT_RETURN_IF_ERROR(outcome);
  return headers;
}

CheckpointFiles join_headers(const std::vector<std::string>& paths,
                             std::vector<SafetensorsHeader> headers) {
  CheckpointFiles result;
  std::size_t tensors = 0;
  for (const SafetensorsHeader& header : headers) tensors += header.tensors.size();
  result.tensors.reserve(tensors);
  result.file_of.reserve(tensors);
  result.offset_of.reserve(tensors);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    SafetensorsHeader& header = headers[i];
    result.files.push_back(
        {paths[i], header.data_start + header.data_bytes, std::move(header.metadata)});
    for (SafetensorsEntry& entry : header.tensors) {
      result.tensors.push_back(std::move(entry.info));
      result.file_of.push_back(static_cast<std::uint32_t>(i));
      result.offset_of.push_back(header.data_start + entry.begin);
    }
  }
  return result;
}

/// Keeps what the index gives to the file it lies in; everything the index names must be there.
/// `found.files` are in the order of `index.files`.
Status apply_index(const CheckpointIndex& index, CheckpointFiles& found) {
  NameIndex listed(index.entries.size());
  for (const auto& entry : index.entries) listed.insert(entry.tensor, name_hash(entry.tensor));

  std::vector<bool> seen(index.entries.size());
  std::string first_left_out;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < found.tensors.size(); ++i) {
    const auto at = listed.find(found.tensors[i].name, name_hash(found.tensors[i].name));
    if (!at || index.entries[*at].file != found.file_of[i]) {
      if (found.left_out++ == 0) {
        first_left_out =
            concat(found.files[found.file_of[i]].path, ": tensor ", quoted(found.tensors[i].name));
      }
      continue;
    }
    seen[*at] = true;
    if (kept != i) found.tensors[kept] = std::move(found.tensors[i]);
    found.file_of[kept] = found.file_of[i];
    found.offset_of[kept] = found.offset_of[i];
    ++kept;
  }
  found.tensors.resize(kept);
  found.file_of.resize(kept);
  found.offset_of.resize(kept);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i]) continue;
    const auto& entry = index.entries[i];
    return invalid_argument(concat(found.files[entry.file].path, ": tensor ", quoted(entry.tensor),
                                   " is not in this file, where the index says it is"));
  }
  if (found.left_out > 0) {
    log_warning(first_left_out,
                found.left_out > 1 ? concat(" and ", found.left_out - 1, " more") : "",
                " left out: the index does not name that file for it");
  }
  return Status::ok();
}

Result<CheckpointFiles> open_index(const std::string& folder, const std::string& name) {
  const std::string path = concat(folder, "/", name);
  CKPT_ASSIGN_OR_RETURN(const std::vector<std::byte> json, read_whole_file(path, kMaxIndexBytes));
  Result<CheckpointIndex> index = parse_checkpoint_index(json);
  if (!index.is_ok()) return index.status().with_context(path);
  std::vector<std::string> paths;
  for (const std::string& file : index->files) {
    paths.push_back(concat(folder, "/", file));
    struct stat info {};
    if (::stat(paths.back().c_str(), &info) != 0 && errno == ENOENT) {
      return not_found(concat(paths.back(), ": no such file, but ", name,
                              " names it: the checkpoint is not complete"));
    }
  }
  CKPT_ASSIGN_OR_RETURN(std::vector<SafetensorsHeader> headers, read_headers(paths));
  CheckpointFiles found = join_headers(paths, std::move(headers));
  CKPT_RETURN_IF_ERROR(apply_index(*index, found));
  return found;
}

}  // namespace

std::uint64_t CheckpointFiles::total_bytes() const {
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : tensors) total += tensor.bytes;
  return total;
}

Result<CheckpointFiles> scan_checkpoint(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return not_found(concat(path, ": no such file or folder"));
    return errno_error(concat(path, ": stat"), errno);
  }
  if (!S_ISDIR(info.st_mode)) return open_files({path});

  const std::string folder_path = path.size() > 1 && path.ends_with('/')
                                      ? path.substr(0, path.find_last_not_of('/') + 1)
                                      : path;
  CKPT_ASSIGN_OR_RETURN(const Folder folder, list_folder(folder_path));
  if (folder.indexes.size() > 1) {
    return invalid_argument(concat(path, ": several indexes (", join(folder.indexes, ", "),
                                   "): keep one, or name the files"));
  }
  if (!folder.indexes.empty()) return open_index(folder_path, folder.indexes.front());
  if (folder.files.empty()) {
    return not_found(concat(path, ": no .safetensors file in this folder"));
  }
  std::vector<std::string> paths;
  for (const std::string& file : folder.files) paths.push_back(concat(folder_path, "/", file));
  return open_files(paths);
}

Result<CheckpointFiles> open_files(const std::vector<std::string>& paths) {
  CKPT_ASSIGN_OR_RETURN(std::vector<SafetensorsHeader> headers, read_headers(paths));
  CheckpointFiles found = join_headers(paths, std::move(headers));
  NameIndex seen(found.tensors.size());
  for (std::size_t i = 0; i < found.tensors.size(); ++i) {
    const std::string& name = found.tensors[i].name;
    const auto [first, is_new] = seen.insert(name, name_hash(name));
    if (is_new) continue;
    return invalid_argument(concat("tensor ", quoted(name), " is in ",
                                   found.files[found.file_of[first]].path, " and in ",
                                   found.files[found.file_of[i]].path,
                                   ": without an index nobody can tell which one is meant"));
  }
  return found;
}

}  // namespace ckpt
