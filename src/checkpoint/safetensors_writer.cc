#include "checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "base/strings.h"
#include "checkpoint/file_bytes.h"
#include "checkpoint/json_literal.h"
#include "checkpoint/name_index.h"

namespace ckpt {
namespace {

Status check_names(const std::vector<TensorInfo>& tensors) {
  NameIndex seen(tensors.size());
  for (const auto& tensor : tensors) {
    if (tensor.name == kSafetensorsMetadataKey) {
      return invalid_argument(
          concat("tensor ", quoted(kSafetensorsMetadataKey), ": the format reserves this name"));
    }
    if (!seen.insert(tensor.name, name_hash(tensor.name)).second) {
      return invalid_argument(concat("tensor ", quoted(tensor.name), ": the name is there twice"));
    }
  }
  return Status::ok();
}

Status append_metadata(const std::map<std::string, std::string>& metadata, std::string& json) {
  json += concat('"', kSafetensorsMetadataKey, "\":{");
  for (bool first = true; const auto& [key, value] : metadata) {
    CKPT_ASSIGN_OR_RETURN(const std::string key_text, json_literal(key));
    CKPT_ASSIGN_OR_RETURN(const std::string value_text, json_literal(value));
    json += concat(std::exchange(first, false) ? "" : ",", key_text, ":", value_text);
  }
  json += '}';
  return Status::ok();
}

Status append_tensor(const TensorInfo& tensor, std::uint64_t begin, std::string& json) {
  CKPT_ASSIGN_OR_RETURN(const std::string name, json_literal(tensor.name));
  json += concat(name, ":{\"dtype\":\"", dtype_name(tensor.dtype), "\",\"shape\":[");
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    json += concat(i == 0 ? "" : ",", tensor.shape[i]);
  }
  json += concat("],\"data_offsets\":[", begin, ",", begin + tensor.bytes, "]}");
  return Status::ok();
}

std::string length_field(std::uint64_t bytes) {
  std::string field;
  for (std::uint64_t i = 0; i < kSafetensorsPrefixBytes; ++i) {
    field += static_cast<char>(bytes >> 8 * i & 0xff);
  }
  return field;
}

}  // namespace

Result<std::string> encode_safetensors_header(const std::vector<TensorInfo>& tensors,
                                              const std::map<std::string, std::string>& metadata) {
  CKPT_RETURN_IF_ERROR(check_names(tensors));
  std::string json = "{";
  if (!metadata.empty()) CKPT_RETURN_IF_ERROR(append_metadata(metadata, json));
  std::uint64_t begin = 0;
  for (const TensorInfo& tensor : tensors) {
    if (json.size() > 1) json += ',';
    CKPT_RETURN_IF_ERROR(append_tensor(tensor, begin, json));
    if (__builtin_add_overflow(begin, tensor.bytes, &begin)) {
      return invalid_argument(
          concat("tensor ", quoted(tensor.name), ": the file would pass 2^64 bytes"));
    }
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kMaxSafetensorsHeaderBytes) {
    return invalid_argument(concat("a header of ", json.size(), " bytes is over the limit of ",
                                   kMaxSafetensorsHeaderBytes, ": use more files"));
  }
  return length_field(json.size()) + json;
}

struct SafetensorsWriter::State {
  std::string path;
  std::string temporary;
  UniqueFd fd;
  std::vector<std::uint64_t> begins;  // file offset of each tensor, and the end
  std::uint64_t appended = 0;
  std::atomic<std::uint64_t> written{0};
  bool finished = false;

  ~State() {
    if (fd && !finished) ::unlink(temporary.c_str());
  }
  std::uint64_t data_bytes() const { return begins.back() - begins.front(); }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

Result<SafetensorsWriter> SafetensorsWriter::create(
    std::string path, const std::vector<TensorInfo>& tensors,
    const std::map<std::string, std::string>& metadata) {
  Result<std::string> header = encode_safetensors_header(tensors, metadata);
  if (!header.is_ok()) return header.status().with_context(path);

  auto state = std::make_unique<State>();
  state->begins.push_back(header->size());
  for (const TensorInfo& tensor : tensors) {
    state->begins.push_back(state->begins.back() + tensor.bytes);
  }
  state->temporary = temporary_name(path);
  state->path = std::move(path);
  state->fd.reset(::open(state->temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!state->fd) return errno_error(concat(state->path, ": create"), errno);
  if (::ftruncate(state->fd.get(), static_cast<off_t>(state->begins.back())) != 0) {
    return errno_error(concat(state->path, ": set the size"), errno);
  }
  Status status = write_at(state->fd.get(), std::as_bytes(std::span(*header)), 0);
  if (!status.is_ok()) return status.with_context(state->path);
  return SafetensorsWriter(std::move(state));
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  State& state = *state_;
  if (bytes.size() > state.data_bytes() - state.appended) {
    return invalid_argument(concat(state.path, ": ", bytes.size(), " more bytes after ",
                                   state.appended, " pass the end of the last tensor"));
  }
  Status status = write_at(state.fd.get(), bytes, state.begins.front() + state.appended);
  if (!status.is_ok()) return status.with_context(state.path);
  state.appended += bytes.size();
  state.written += bytes.size();
  return Status::ok();
}

Status SafetensorsWriter::write(std::size_t tensor, std::uint64_t offset,
                                std::span<const std::byte> bytes) {
  State& state = *state_;
  if (tensor + 1 >= state.begins.size()) {
    return invalid_argument(concat(state.path, ": there is no tensor number ", tensor));
  }
  const std::uint64_t tensor_bytes = state.begins[tensor + 1] - state.begins[tensor];
  if (offset > tensor_bytes || bytes.size() > tensor_bytes - offset) {
    return invalid_argument(concat(state.path, ": ", bytes.size(), " bytes at ", offset,
                                   " pass the end of tensor number ", tensor, ", which has ",
                                   tensor_bytes));
  }
  Status status = write_at(state.fd.get(), bytes, state.begins[tensor] + offset);
  if (!status.is_ok()) return status.with_context(state.path);
  state.written += bytes.size();
  return Status::ok();
}

Status SafetensorsWriter::finish() {
  State& state = *state_;
  if (state.written != state.data_bytes()) {
    return failed_precondition(concat(state.path, ": ", state.written.load(), " of ",
                                      state.data_bytes(), " bytes were written"));
  }
  if (std::rename(state.temporary.c_str(), state.path.c_str()) != 0) {
    return errno_error(concat(state.path, ": rename"), errno);
  }
  state.finished = true;
  return Status::ok();
}

}  // namespace ckpt
