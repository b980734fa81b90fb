#include "http/held_weights.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/fd.h"
#include "base/strings.h"
#include "checkpoint/order.h"
#include "checkpoint/safetensors_writer.h"

namespace ckpt {
namespace {

constexpr std::uint64_t kBlock = 1u << 20;

Status read_block(const std::string& path, int fd, std::span<std::byte> to, std::uint64_t offset) {
  while (!to.empty()) {
    const auto count = ::pread(fd, to.data(), to.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_error(path, errno);
    if (count == 0) return io_error(concat(path, ": ends before byte ", offset));
    to = to.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return Status::ok();
}

/// A tensor on disk.
struct Expected {
  const TensorInfo& info;
  const std::string& path;
  int fd;
  std::uint64_t offset;
};

Status compare_bytes(const HeldTensor& held, const Expected& expected) {
  const TensorInfo& info = expected.info;
  std::vector<std::byte> block(std::min(kBlock, info.bytes));
  for (std::uint64_t at = 0; at < info.bytes; at += kBlock) {
    const auto size = static_cast<std::size_t>(std::min(kBlock, info.bytes - at));
    const std::span<std::byte> part(block.data(), size);
    CKPT_RETURN_IF_ERROR(read_block(expected.path, expected.fd, part, expected.offset + at));
    const auto mine = held.bytes.subspan(static_cast<std::size_t>(at), size);
    if (std::memcmp(mine.data(), part.data(), size) == 0) continue;
    const auto differs = std::mismatch(mine.begin(), mine.end(), part.begin()).first;
    return data_loss(
        concat("tensor ", quoted(info.name), " differs from ", expected.path, " at its byte ",
               at + static_cast<std::uint64_t>(differs - mine.begin()), " of ", info.bytes));
  }
  return Status::ok();
}

Status compare_tensor(const WorkerMemory& held, const Expected& expected) {
  const std::string& name = expected.info.name;
  const HeldTensor* const mine = held.find(name);
  if (mine == nullptr) {
    return data_loss(concat("tensor ", quoted(name), " of ", expected.path, " is not held"));
  }
  if (mine->info != expected.info) {
    return data_loss(
        concat("tensor ", quoted(name), " has another dtype or shape in ", expected.path));
  }
  return compare_bytes(*mine, expected);
}

Status nothing_more(const WorkerMemory& held, const CheckpointFiles& expected) {
  if (held.tensors().size() <= expected.tensors.size()) return Status::ok();
  std::vector<std::string_view> names;
  for (const TensorInfo& tensor : expected.tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  for (const HeldTensor& tensor : held.tensors()) {
    if (!std::binary_search(names.begin(), names.end(), tensor.info.name)) {
      return data_loss(
          concat("tensor ", quoted(tensor.info.name), " is held, but not in the checkpoint"));
    }
  }
  return Status::ok();
}

}  // namespace

Status compare_with_checkpoint(const WorkerMemory& held, const CheckpointFiles& expected,
                               ThreadPool& threads) {
  std::vector<UniqueFd> files;
  for (const CheckpointFile& file : expected.files) {
    files.emplace_back(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!files.back()) return errno_error(file.path, errno);
  }
  CKPT_RETURN_IF_ERROR(threads.for_each(expected.tensors.size(), [&](std::size_t i) {
    const std::uint32_t file = expected.file_of[i];
    return compare_tensor(held, {expected.tensors[i], expected.files[file].path, files[file].get(),
                                 expected.offset_of[i]});
  }));
  return nothing_more(held, expected);
}

Status write_held_weights(const WorkerMemory& held, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return errno_error(folder, error.value());
  std::vector<TensorInfo> tensors;
  for (const HeldTensor& tensor : held.tensors()) tensors.push_back(tensor.info);
  const std::vector<std::uint32_t> order = plan_order(tensors);
  std::vector<TensorInfo> ordered;
  for (const std::uint32_t index : order) ordered.push_back(tensors[index]);
  CKPT_ASSIGN_OR_RETURN(auto writer,
                        SafetensorsWriter::create(folder + "/model.safetensors", ordered));
  for (const std::uint32_t index : order) {
    CKPT_RETURN_IF_ERROR(writer.append(held.tensors()[index].bytes));
  }
  return writer.finish();
}

}  // namespace ckpt
