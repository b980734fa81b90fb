#include "checkpoint/synthetic_checkpoint.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/parallel.h"
#include "base/strings.h"
#include "checkpoint/file_bytes.h"
#include "checkpoint/json_literal.h"
#include "checkpoint/safetensors_writer.h"

namespace ckpt {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::size_t kBufferBytes = std::size_t{64} << 10;  // stays in the processor's cache
constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);

/// The finaliser of splitmix64.
std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

std::uint64_t key_of(std::uint64_t seed, std::string_view name) {
  std::uint64_t key = scramble(seed + 0x9E3779B97F4A7C15);
  for (const char c : name) key = (key ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return scramble(key);
}

/// Bits of a word that may be set: without the exponent's highest bit there is neither infinity nor
/// NaN. Types whose only NaN is all ones or "minus zero" lose their top bit instead.
std::uint64_t allowed_bits(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return 0x0101010101010101;
    case DType::kF16:
    case DType::kBF16:
      return 0xBFFFBFFFBFFFBFFF;
    case DType::kF32:
    case DType::kC64:
      return 0xBFFFFFFFBFFFFFFF;
    case DType::kF64:
      return 0xBFFFFFFFFFFFFFFF;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 0xBFBFBFBFBFBFBFBF;
    case DType::kF8E8M0:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ:
      return 0x7F7F7F7F7F7F7F7F;
    default:
      return ~std::uint64_t{0};
  }
}

std::vector<std::vector<TensorInfo>> cut_into_shards(const std::vector<TensorInfo>& tensors,
                                                     std::uint64_t shard_bytes) {
  std::vector<std::vector<TensorInfo>> shards(1);
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : tensors) {
    if (!shards.back().empty() && bytes + tensor.bytes > shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(tensor);
    bytes += tensor.bytes;
  }
  return shards;
}

std::string shard_name(std::size_t number, std::size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", number + 1, count);
  return name;
}

Status write_shard(const std::string& path, const std::vector<TensorInfo>& tensors,
                   std::uint64_t seed, ThreadPool& pool) {
  CKPT_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                        SafetensorsWriter::create(path, tensors, {{"format", "pt"}}));
  struct Piece {
    std::size_t tensor;
    std::uint64_t offset;
  };
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::uint64_t at = 0; at < tensors[i].bytes; at += kPieceBytes) pieces.push_back({i, at});
  }
  const auto write_piece = [&](std::size_t i) -> Status {
    const auto [number, offset] = pieces[i];
    const TensorInfo& tensor = tensors[number];
    std::array<std::byte, kBufferBytes> buffer;
    const std::uint64_t end = std::min<std::uint64_t>(tensor.bytes, offset + kPieceBytes);
    for (std::uint64_t at = offset; at < end; at += buffer.size()) {
      const std::span part(buffer.data(), std::min<std::uint64_t>(buffer.size(), end - at));
      fill_synthetic(part, seed, tensor, at);
      CKPT_RETURN_IF_ERROR(writer.write(number, at, part));
    }
    return Status::ok();
  };
  CKPT_RETURN_IF_ERROR(pool.for_each(pieces.size(), write_piece));
  return writer.finish();
}

Status write_index(const std::string& folder, const std::vector<std::vector<TensorInfo>>& shards) {
  std::uint64_t total = 0;
  std::string map;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const TensorInfo& tensor : shards[i]) {
      CKPT_ASSIGN_OR_RETURN(const std::string name, json_literal(tensor.name));
      map +=
          concat(map.empty() ? "" : ",", "\n    ", name, ": \"", shard_name(i, shards.size()), '"');
      total += tensor.bytes;
    }
  }
  const std::string json = concat("{\n  \"metadata\": {\n    \"total_size\": ", total,
                                  "\n  },\n  \"weight_map\": {", map, "\n  }\n}\n");
  return replace_file(concat(folder, "/", kIndexName), std::as_bytes(std::span(json)));
}

Status check_empty_of_checkpoints(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.') &&
        (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"))) {
      return already_exists(
          concat(folder, ": holds ", name, " already: remove it or take another folder"));
    }
  }
  if (error) return errno_error(concat(folder, ": list folder"), error.value());
  return Status::ok();
}

}  // namespace

void fill_synthetic(std::span<std::byte> to, std::uint64_t seed, const TensorInfo& tensor,
                    std::uint64_t offset) {
  const std::uint64_t key = key_of(seed, tensor.name), allowed = allowed_bits(tensor.dtype);
  const auto word = [&](std::uint64_t i) {
    return scramble(key + i * 0x9E3779B97F4A7C15) & allowed;
  };
  std::uint64_t index = offset / kWordBytes;
  if (const std::size_t skip = offset % kWordBytes; skip != 0 && !to.empty()) {
    const std::uint64_t first = word(index++);
    const std::size_t bytes = std::min(to.size(), kWordBytes - skip);
    std::memcpy(to.data(), reinterpret_cast<const std::byte*>(&first) + skip, bytes);
    to = to.subspan(bytes);
  }
  for (; to.size() >= kWordBytes; to = to.subspan(kWordBytes)) {
    const std::uint64_t whole = word(index++);
    std::memcpy(to.data(), &whole, kWordBytes);
  }
  if (!to.empty()) {
    const std::uint64_t last = word(index);
    std::memcpy(to.data(), &last, to.size());
  }
}

Status write_synthetic_checkpoint(const std::string& folder, const std::vector<TensorInfo>& tensors,
                                  const SyntheticOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return errno_error(concat(folder, ": make folder"), error.value());
  CKPT_RETURN_IF_ERROR(check_empty_of_checkpoints(folder));

  const auto shards = cut_into_shards(tensors, options.shard_bytes);
  ThreadPool pool(options.threads > 0 ? options.threads : available_processors());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    CKPT_RETURN_IF_ERROR(write_shard(concat(folder, "/", shard_name(i, shards.size())), shards[i],
                                     options.seed, pool));
  }
  return write_index(folder, shards);
}

}  // namespace ckpt
