// A transfer engine of the application's own (Mooncake, for instance), by which ranks read each
// other's memory in the place of UCX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint_engine/status.h"

namespace [[gnu::visibility("default")]] ckpt {

/// Implemented by the application. Called from any thread, for different ranks at the same time.
class TransferEngine {
 public:
  /// Contiguous memory of another rank, and where it goes.
  struct Piece {
    std::uint64_t remote_address = 0;
    void* destination = nullptr;
    std::uint64_t bytes = 0;
  };
  using MessageHandler = std::function<void(std::span<const std::byte> message)>;

  virtual ~TransferEngine() = default;
  /// What others need to reach this engine; goes into the metas.
  virtual std::string address() const = 0;
  /// Lets others read `bytes` bytes at `data`.
  virtual Status register_memory(void* data, std::uint64_t bytes) = 0;
  /// Returns when nobody reads the memory any more.
  virtual void deregister_memory(void* data) = 0;
  /// Copies all pieces. Returns when no destination will be written any more: when `seconds` have
  /// passed at the latest, and soon after `cancelled()` becomes true. kPeerLost: nobody answers at
  /// `address`; kNotFound: somebody does, who does not have such memory. No pieces: whether anybody
  /// answers.
  virtual Status read(const std::string& address, std::span<const Piece> pieces, double seconds,
                      const std::function<bool()>& cancelled) = 0;
  /// True while a read that has returned early still takes bytes from memory at `address`: its
  /// owner does not get that memory back meanwhile.
  virtual bool has_abandoned_reads(const std::string& /*address*/) const { return false; }
  /// True: read() writes to memory of the ranks' devices (GPUs), of which it is told beforehand by
  /// register_destination. False: to host memory, of which it is told nothing; from there it is
  /// copied to a GPU.
  virtual bool takes_destinations() const { return false; }
  /// Memory of the rank's device, staging of an update; an error is no failure of the update, which
  /// then reads into host memory.
  virtual Status register_destination(void* /*data*/, std::uint64_t /*bytes*/) {
    return Status::ok();
  }
  /// After the last read into it.
  virtual void deregister_destination(void* /*data*/) {}
  /// Hands a message of at most 64 KiB to the other side's handler. Those to one address arrive in
  /// order.
  virtual Status send(const std::string& address, std::span<const std::byte> message) = 0;
  /// Where messages of others go; on any thread, one at a time. After it returns the earlier
  /// handler is not running. Empty: they are dropped.
  virtual void set_message_handler(MessageHandler handler) = 0;
};

}  // namespace gnu::visibility("default")]]ckpt
