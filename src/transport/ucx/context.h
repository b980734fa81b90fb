// A UCX context with the settings that this engine needs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "transport/ucx/ucx_transport.h"

struct ucp_context;
struct ucp_mem;

namespace ckpt::ucx {

/// UCX's own name of an error, e.g. "Connection reset by remote peer".
std::string ucs_text(int ucs_status);

/// One per transport; registration from any thread.
class Context {
 public:
  static Result<std::shared_ptr<Context>> create(const UcxOptions& options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ucp_context* get() const { return context_; }
  /// What reads are best cut into on the network that is used.
  std::uint64_t read_grain() const { return read_grain_; }
  /// Pins [data, data + bytes) for the devices that want that, in pieces of at most `piece_bytes`,
  /// smaller ones where the device refuses. Nothing stays pinned after an error.
  Result<std::vector<ucp_mem*>> pin(void* data, std::uint64_t bytes);
  /// The same for memory of a GPU.
  Result<std::vector<ucp_mem*>> pin_gpu_memory(void* data, std::uint64_t bytes);
  void unpin(const std::vector<ucp_mem*>& pieces);
  /// ok where network devices write to memory of GPUs by themselves; else why they do not.
  const Status& reads_into_gpus() const { return reads_into_gpus_; }
  /// What this UCX knows, as it names it: "host", "cuda".
  const std::vector<std::string>& memory_kinds() const { return memory_kinds_; }

 private:
  explicit Context(ucp_context* context) : context_(context) {}
  Status find_memory_kinds(bool only_tcp);
  Result<std::vector<ucp_mem*>> map(void* data, std::uint64_t bytes, bool on_gpu);

  ucp_context* const context_;
  std::uint64_t read_grain_ = 0;
  std::vector<std::string> memory_kinds_;
  Status reads_into_gpus_;
};

}  // namespace ckpt::ucx
