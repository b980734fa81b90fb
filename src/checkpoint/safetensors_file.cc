// From a file to its header: the length field, and what else is found under this extension.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/fd.h"
#include "base/strings.h"
#include "checkpoint/file_bytes.h"
#include "checkpoint/safetensors_header.h"

namespace ckpt {
namespace {

constexpr std::size_t kFirstBytes = 64;

struct Lookalike {
  std::string_view magic;
  std::string_view advice;
};
constexpr std::array<Lookalike, 5> kLookalikes = {{
    {"version https://git-lfs", "a git LFS pointer, not the file itself: run `git lfs pull`"},
    {std::string_view("PK\x03\x04", 4), "a zip file, as torch.save writes it: convert it"},
    {std::string_view("\x80\x02", 2), "a pickle, as old torch.save wrote it: convert it"},
    {"GGUF", "a GGUF file: convert it"},
    {"<!DOCTYPE", "a web page: the download failed"},
}};

Result<SafetensorsHeader> read_header(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return errno == ENOENT ? not_found("no such file") : errno_error("open", errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return errno_error("stat", errno);
  if (!S_ISREG(info.st_mode)) return invalid_argument("not a regular file");
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);

  std::array<std::byte, kFirstBytes> first{};
  const std::size_t first_bytes = std::min<std::uint64_t>(first.size(), file_bytes);
  CKPT_RETURN_IF_ERROR(read_at(fd.get(), {first.data(), first_bytes}, 0));
  CKPT_ASSIGN_OR_RETURN(const std::uint64_t json_bytes,
                        safetensors_json_bytes({first.data(), first_bytes}, file_bytes));
  const auto padded = std::make_unique_for_overwrite<std::byte[]>(json_bytes + kJsonPadding);
  const std::span json(padded.get(), json_bytes);
  CKPT_RETURN_IF_ERROR(read_at(fd.get(), json, kSafetensorsPrefixBytes));
  std::fill_n(padded.get() + json_bytes, kJsonPadding, std::byte{0});
  return parse_padded_safetensors_header(json, file_bytes - kSafetensorsPrefixBytes - json_bytes);
}

}  // namespace

Result<std::uint64_t> safetensors_json_bytes(std::span<const std::byte> first,
                                             std::uint64_t file_bytes) {
  // Any first bytes may be a length, so what they look like matters only once they cannot be one.
  const auto refuse = [&](std::string reason) {
    const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
    for (const Lookalike& lookalike : kLookalikes) {
      if (text.starts_with(lookalike.magic)) {
        return invalid_argument(concat("not a safetensors file but ", lookalike.advice));
      }
    }
    return invalid_argument(std::move(reason));
  };
  if (file_bytes < kSafetensorsPrefixBytes || first.size() < kSafetensorsPrefixBytes) {
    return refuse(concat("a file of ", file_bytes, " bytes is too short for a header"));
  }
  std::uint64_t json_bytes = 0;
  for (std::size_t i = kSafetensorsPrefixBytes; i-- > 0;) {
    json_bytes = json_bytes << 8 | std::to_integer<std::uint64_t>(first[i]);
  }
  if (json_bytes > kMaxSafetensorsHeaderBytes) {
    return refuse(concat("its length field states a header of ", json_bytes,
                         " bytes, over the limit of ", kMaxSafetensorsHeaderBytes,
                         ": not a safetensors file, or damaged"));
  }
  if (json_bytes > file_bytes - kSafetensorsPrefixBytes) {
    return refuse(concat("its length field states a header of ", json_bytes,
                         " bytes, the file has ", file_bytes, ": it is cut short"));
  }
  return json_bytes;
}

Result<SafetensorsHeader> read_safetensors_header(const std::string& path) {
  Result<SafetensorsHeader> header = read_header(path);
  if (!header.is_ok()) return header.status().with_context(path);
  return header;
}

}  // namespace ckpt
