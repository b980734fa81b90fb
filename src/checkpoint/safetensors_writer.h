// Writing safetensors files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors_header.h"
#include "checkpoint_engine/status.h"
#include "checkpoint_engine/tensor.h"

namespace ckpt {

/// Length field and JSON of a file whose data are `tensors` in this order without gaps; spaces pad
/// the JSON so that the data start at a multiple of 8. Pure. Refused (kInvalidArgument): a name
/// that is there twice, is reserved or is not UTF-8, and a header over kMaxSafetensorsHeaderBytes.
Result<std::string> encode_safetensors_header(const std::vector<TensorInfo>& tensors,
                                              const std::map<std::string, std::string>& metadata);

/// One file on its way. It grows under a name that scans skip, in the folder of its `path`, and
/// takes `path` in one step: whatever was there before stays whole until then. Not synced to disk.
class SafetensorsWriter {
 public:
  /// The folder must exist. Tensors keep this order.
  static Result<SafetensorsWriter> create(std::string path, const std::vector<TensorInfo>& tensors,
                                          const std::map<std::string, std::string>& metadata = {});

  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  /// Removes what is not finished.
  ~SafetensorsWriter();

  /// The next bytes of the data: tensors one after the other, cut anywhere. From one thread, and
  /// not together with write().
  Status append(std::span<const std::byte> bytes);
  /// `bytes` of tensor number `tensor`, from its byte `offset` on. Any order, from any thread; each
  /// byte once.
  Status write(std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes);
  /// Gives the file its name. kFailedPrecondition unless as many bytes were written as the tensors
  /// have. To be called once, last.
  Status finish();

 private:
  struct State;
  explicit SafetensorsWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ckpt
