// The header of a safetensors file. The rules, and our verdict where the format leaves one open,
// are in docs/safetensors.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint_engine/status.h"
#include "checkpoint_engine/tensor.h"

namespace ckpt {

/// The JSON of a header may have this many bytes (the reference library's limit).
constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
/// Bytes of the length field before the JSON.
constexpr std::uint64_t kSafetensorsPrefixBytes = 8;

/// What the JSON parser may read behind its text.
constexpr std::size_t kJsonPadding = 64;
/// The key of the JSON that is no tensor.
constexpr std::string_view kSafetensorsMetadataKey = "__metadata__";

struct SafetensorsEntry {
  TensorInfo info;
  std::uint64_t begin = 0;  ///< offset in the data section; the tensor has info.bytes bytes there

  bool operator==(const SafetensorsEntry&) const = default;
};

struct SafetensorsHeader {
  /// By offset, without gap or overlap from 0 to data_bytes. Names are unique. Empty tensors stand
  /// before the tensor at their offset, among themselves by name.
  std::vector<SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;  ///< of `__metadata__`
  std::uint64_t data_start = 0;                 ///< file offset of the data section; may be odd
  std::uint64_t data_bytes = 0;

  bool operator==(const SafetensorsHeader&) const = default;
};

/// Length of the JSON as the first bytes of a file of `file_bytes` bytes state it, checked against
/// both limits. `first` are its first min(file_bytes, 64) bytes: more than the length field is read
/// to recognise what else was given this extension.
Result<std::uint64_t> safetensors_json_bytes(std::span<const std::byte> first,
                                             std::uint64_t file_bytes);

/// `json` is the header without its length field, `data_bytes` what follows it in the file. Pure.
/// An error (kInvalidArgument, kUnsupported for an unknown dtype) names the tensor and the rule.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> json,
                                                   std::uint64_t data_bytes);

/// The same without a copy: `json` is followed by kJsonPadding bytes of zeros.
Result<SafetensorsHeader> parse_padded_safetensors_header(std::span<const std::byte> json,
                                                          std::uint64_t data_bytes);

/// Reads the header of the file at `path`; the data is not read. Errors name the file too.
Result<SafetensorsHeader> read_safetensors_header(const std::string& path);

}  // namespace ckpt
