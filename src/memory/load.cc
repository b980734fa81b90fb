#include "memory/load.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <unordered_map>

#include "base/fd.h"
#include "base/strings.h"
#include "checkpoint/digest.h"
#include "memory/load_windows.h"

namespace ckpt {
namespace {

/// Every file once, and for each tensor the file it comes from.
struct SourceFiles {
  std::vector<UniqueFd> files;
  std::vector<std::size_t> file_of;
};

Result<SourceFiles> open_sources(std::span<const FileSource> sources) {
  SourceFiles result;
  std::unordered_map<std::string_view, std::size_t> known;
  result.file_of.reserve(sources.size());
  for (const FileSource& source : sources) {
    const auto [it, is_new] = known.try_emplace(source.path, result.files.size());
    result.file_of.push_back(it->second);
    if (!is_new) continue;
    UniqueFd fd(::open(source.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd && errno == ENOENT) return not_found(concat("no file ", quoted(source.path)));
    if (!fd) return errno_error(concat("opening ", quoted(source.path)), errno);
    result.files.push_back(std::move(fd));
  }
  return result;
}

Status read_block(int fd, const FileSource& source, const std::string& name, std::uint64_t begin,
                  std::byte* to, std::uint64_t bytes) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t at = source.file_offset + begin + done;
    const ssize_t n = ::pread(fd, to + done, bytes - done, static_cast<off_t>(at));
    if (n > 0) {
      done += static_cast<std::uint64_t>(n);
    } else if (n == 0) {
      return data_loss(concat("file ", quoted(source.path), " ends at byte ", at,
                              ", inside tensor ", quoted(name), ", which has begun at byte ",
                              source.file_offset, ": it was cut after its header had been read"));
    } else if (errno != EINTR) {
      return errno_error(concat("reading tensor ", quoted(name), " from file ", quoted(source.path),
                                " at byte ", at),
                         errno);
    }
  }
  return Status::ok();
}

Status check_counts(std::size_t tensors, std::size_t sources) {
  if (tensors == sources) return Status::ok();
  return invalid_argument(concat(tensors, " tensors, but ", sources, " sources to load them from"));
}

}  // namespace

Result<TensorSums> load_files(HostPool& pool, std::span<const PoolTensor> tensors,
                              std::span<const FileSource> sources, const LoadOptions& options) {
  CKPT_RETURN_IF_ERROR(check_counts(tensors.size(), sources.size()));
  CKPT_ASSIGN_OR_RETURN(const SourceFiles opened, open_sources(sources));
  return load_windows(
      pool, tensors,
      [&](std::size_t i, std::uint64_t begin, std::byte* to,
          std::uint64_t bytes) -> Result<std::uint64_t> {
        const int fd = opened.files[opened.file_of[i]].get();
        CKPT_RETURN_IF_ERROR(read_block(fd, sources[i], tensors[i].name, begin, to, bytes));
        return digest_sum(to, bytes, begin / 8);
      },
      options);
}

Result<TensorSums> load_memory(HostPool& pool, std::span<const PoolTensor> tensors,
                               std::span<const std::byte* const> sources,
                               const LoadOptions& options) {
  CKPT_RETURN_IF_ERROR(check_counts(tensors.size(), sources.size()));
  return load_windows(
      pool, tensors,
      [&](std::size_t i, std::uint64_t begin, std::byte* to, std::uint64_t bytes) {
        return Result<std::uint64_t>(digest_copy(to, sources[i] + begin, bytes, begin / 8));
      },
      options);
}

Result<TensorSums> digest_in_place(HostPool& pool, std::span<const PoolTensor> tensors,
                                   const LoadOptions& options) {
  return load_windows(
      pool, tensors,
      [&](std::size_t, std::uint64_t begin, std::byte* to, std::uint64_t bytes) {
        return Result<std::uint64_t>(digest_sum(to, bytes, begin / 8));
      },
      options);
}

}  // namespace ckpt
