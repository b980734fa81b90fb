#include "http/worker_memory.h"

#include <sys/mman.h>

#include "base/strings.h"

namespace ckpt {
namespace {

constexpr std::size_t kHugePage = 2u << 20;
constexpr std::size_t kAlignment = 64;

/// Huge pages for what is large: the first update touches all of it.
std::byte* allocate(std::uint64_t bytes) {
  const std::size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  const std::size_t size = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, size);
  if (memory != nullptr && alignment == kHugePage) ::madvise(memory, size, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

std::string describe(const TensorInfo& tensor) {
  std::vector<std::string> dimensions;
  for (const auto dimension : tensor.shape) dimensions.push_back(concat(dimension));
  return concat(dtype_name(tensor.dtype), " [", join(dimensions, ", "), "]");
}

}  // namespace

void WorkerMemory::begin_update() {
  held_before_ = tensors_.size();
  written_.clear();
}

void WorkerMemory::end_update(bool succeeded) {
  if (succeeded) {
    for (const std::size_t index : written_) tensors_[index].torn = false;
  } else {
    for (std::size_t index = held_before_; index < tensors_.size(); ++index) {
      by_name_.erase(tensors_[index].info.name);
    }
    tensors_.resize(held_before_);
    memory_.resize(held_before_);
  }
  written_.clear();
}

Result<std::span<std::byte>> WorkerMemory::destination(const TensorInfo& tensor) {
  const auto [place, is_new] = by_name_.try_emplace(tensor.name, tensors_.size());
  if (is_new) {
    std::unique_ptr<std::byte, Free> memory(tensor.bytes == 0 ? nullptr : allocate(tensor.bytes));
    if (memory == nullptr && tensor.bytes != 0) {
      by_name_.erase(place);
      return resource_exhausted(
          concat("no memory for tensor ", quoted(tensor.name), " of ", format_bytes(tensor.bytes)));
    }
    tensors_.push_back({tensor, {memory.get(), static_cast<std::size_t>(tensor.bytes)}, false});
    memory_.push_back(std::move(memory));
  }
  HeldTensor& held = tensors_[place->second];
  if (held.info != tensor) {
    return invalid_argument(concat("tensor ", quoted(tensor.name), " is ", describe(held.info),
                                   " here and comes as ", describe(tensor),
                                   "; is this a checkpoint of the same model?"));
  }
  held.torn = true;
  written_.push_back(place->second);
  return held.bytes;
}

Status WorkerMemory::complete() const {
  if (tensors_.empty()) return failed_precondition("no weights have been received yet");
  for (const HeldTensor& tensor : tensors_) {
    if (!tensor.torn) continue;
    return failed_precondition(
        concat("the weights are incomplete: an update failed after it had "
               "begun to write tensor ",
               quoted(tensor.info.name), "; update again"));
  }
  return Status::ok();
}

const HeldTensor* WorkerMemory::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::uint64_t WorkerMemory::total_bytes() const {
  std::uint64_t total = 0;
  for (const HeldTensor& tensor : tensors_) total += tensor.info.bytes;
  return total;
}

}  // namespace ckpt
