// The weights of one worker in host memory: allocated by the first update, overwritten in place by
// those that follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint_engine/receiver.h"
#include "checkpoint_engine/status.h"
#include "checkpoint_engine/tensor.h"

namespace ckpt {

struct HeldTensor {
  TensorInfo info;
  std::span<std::byte> bytes;  ///< stays where it is for as long as the memory lives
  bool torn = false;           ///< written by an update that has not succeeded
};

/// One thread at a time. begin_update, the Loader's calls and end_update belong together.
class WorkerMemory final : public Loader {
 public:
  WorkerMemory() = default;
  WorkerMemory(const WorkerMemory&) = delete;
  WorkerMemory& operator=(const WorkerMemory&) = delete;

  void begin_update();
  /// After a success, what was written is whole. After a failure, tensors that this update brought
  /// first are dropped, and those that it wrote stay torn until another update has written them.
  void end_update(bool succeeded);

  /// The tensor's memory; new names are added. kInvalidArgument when dtype or shape are not those
  /// held.
  Result<std::span<std::byte>> destination(const TensorInfo& tensor) override;

  /// Ok when there are tensors and none is torn; else the reason.
  Status complete() const;
  const std::vector<HeldTensor>& tensors() const { return tensors_; }
  /// Null when nothing of that name is held.
  const HeldTensor* find(const std::string& name) const;
  std::uint64_t total_bytes() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  std::vector<HeldTensor> tensors_;  // in the order of arrival
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::size_t held_before_ = 0;       // those behind came with the running update
  std::vector<std::size_t> written_;  // by the running update
};

}  // namespace ckpt
