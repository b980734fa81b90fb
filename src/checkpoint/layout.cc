#include <array>
#include <cstring>

#include "base/strings.h"
#include "checkpoint/metas.h"
#include "checkpoint/name_index.h"
#include "checkpoint/order.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ckpt {
namespace {

// Many small pieces hashed as one text. Numbers are little-endian.
class PieceHasher {
 public:
  PieceHasher() { XXH3_128bits_reset(&state_); }

  void add(std::string_view text) {
    if (text.size() > buffer_.size() - used_) flush();
    if (text.size() > buffer_.size()) {
      XXH3_128bits_update(&state_, text.data(), text.size());
      return;
    }
    std::memcpy(buffer_.data() + used_, text.data(), text.size());
    used_ += text.size();
  }
  void add(std::uint64_t number) {
    std::array<char, 8> bytes;
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (8 * i));
    add(std::string_view(bytes.data(), bytes.size()));
  }
  LayoutHash finish() {
    flush();
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return {hash.high64, hash.low64};
  }

 private:
  void flush() {
    XXH3_128bits_update(&state_, buffer_.data(), used_);
    used_ = 0;
  }

  XXH3_state_t state_;
  std::array<char, 4096> buffer_;
  std::size_t used_ = 0;
};

LayoutHash hash_layout(const std::vector<TensorInfo>& tensors) {
  PieceHasher hasher;
  hasher.add(tensors.size());
  for (const TensorInfo& tensor : tensors) {
    hasher.add(tensor.name.size());
    hasher.add(tensor.name);
    hasher.add(static_cast<std::uint64_t>(tensor.dtype));
    hasher.add(tensor.shape.size());
    for (const std::int64_t dim : tensor.shape) hasher.add(static_cast<std::uint64_t>(dim));
  }
  return hasher.finish();
}

}  // namespace

std::string LayoutHash::to_string() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(32, '0');
  for (int i = 0; i < 16; ++i) {
    text[15 - i] = kDigits[high >> (4 * i) & 15];
    text[31 - i] = kDigits[low >> (4 * i) & 15];
  }
  return text;
}

Layout Layout::make(std::vector<TensorInfo> tensors) {
  Layout layout;
  layout.hash = hash_layout(tensors);
  layout.groups.reserve(tensors.size());
  layout.name_hashes.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) {
    layout.groups.push_back(group_id(tensor.name));
    layout.name_hashes.push_back(name_hash(tensor.name));
  }
  layout.tensors = std::move(tensors);
  return layout;
}

Status check_unique_names(const Layout& layout) {
  NameIndex names(layout.tensors.size());
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const std::string& name = layout.tensors[i].name;
    if (!names.insert(name, layout.name_hashes[i]).second) {
      return invalid_argument(concat("a layout has tensor ", quoted(name), " twice"));
    }
  }
  return Status::ok();
}

Status check_pool_regions(std::span<const PoolRegion> regions) {
  std::uint64_t end = 0;
  for (const PoolRegion& region : regions) {
    if (region.pool_offset < end) {
      return invalid_argument(concat("the pool region at ", region.pool_offset,
                                     " begins before the one before it ends at ", end));
    }
    if (__builtin_add_overflow(region.pool_offset, region.bytes, &end)) {
      return invalid_argument(concat("the pool region at ", region.pool_offset, " of ",
                                     region.bytes, " bytes ends beyond 64 bits"));
    }
  }
  return Status::ok();
}

}  // namespace ckpt
