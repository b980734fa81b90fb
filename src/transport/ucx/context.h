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
  void unpin(const std::vector<ucp_mem*>& pieces);

 private:
  Context(ucp_context* context, std::uint64_t read_grain)
      : context_(context), read_grain_(read_grain) {}
  ucp_context* const context_;
  const std::uint64_t read_grain_;
};

}  // namespace ckpt::ucx
