// Small files read whole, and exact reads and writes at an offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// Fills `to` from `offset` of the file on. kIo when the file ends before or cannot be read.
Status read_at(int fd, std::span<std::byte> to, std::uint64_t offset);
/// Writes all of `from` at `offset`. kResourceExhausted when the disk is full.
Status write_at(int fd, std::span<const std::byte> from, std::uint64_t offset);
/// The file at `path`; one above `limit` bytes is refused unread. Errors name the file.
Result<std::vector<std::byte>> read_whole_file(const std::string& path, std::uint64_t limit);

/// A name in the folder of `path` for what is to take its place; scans skip it.
std::string temporary_name(const std::string& path);
/// `path` holds `bytes` afterwards, or what it held before. Not synced to disk. Errors name the
/// file.
Status replace_file(const std::string& path, std::span<const std::byte> bytes);

}  // namespace ckpt
