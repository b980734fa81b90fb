// One of the two protocols of a worker channel. The channel (channel.cc) knows which state it is in
// and calls only what that state allows; a wire knows how to say it.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "worker/channel.h"

namespace ckpt {

/// One thread uses it at a time. Once a call has failed, the pass is over: only start_abort() and
/// abort_step() follow.
class WorkerWire {
 public:
  virtual ~WorkerWire() = default;

  /// Readable when a worker knocks, has answered or is lost.
  virtual int poll_fd() const = 0;
  /// A worker has connected and was not accepted yet. Does not wait.
  virtual bool knocking() = 0;
  /// Begins a pass with the worker that knocks; nothing when it has gone meanwhile.
  virtual Result<std::optional<WorkerHello>> accept(Deadline deadline, AbortSignal& abort) = 0;

  // As in WorkerChannel.
  virtual Status open_ring(const BufferHandle& ring, Deadline deadline, AbortSignal& abort) = 0;
  virtual int window() const = 0;
  virtual Status announce(std::uint32_t bucket, std::span<const RingEntry> entries) = 0;
  virtual Result<BucketAck> wait_ack(Deadline deadline, AbortSignal& abort) = 0;
  virtual Status release(Deadline deadline, AbortSignal& abort) = 0;
  /// The pass is over when it returns ok; the next worker may knock.
  virtual Status finish(Deadline deadline, AbortSignal& abort) = 0;

  /// Tells everybody who is connected, and who will be, that the update has failed. Does not wait.
  virtual void start_abort(const Status& cause) = 0;
  /// Who is left to be told. Call it when poll_fd() is readable. Does not wait.
  struct AbortProgress {
    bool connected = false;  ///< somebody is, and may still read the ring
    bool stopped = false;    ///< somebody has stopped answering, and may go on where it was
    bool served = false;     ///< somebody has gone since: told, or by itself
  };
  virtual AbortProgress abort_step() = 0;
  /// The worker has had its time: its connection is cut. It is told if it connects again, as one of
  /// the stock wire does, also when it had stopped.
  virtual void cut() = 0;
};

/// Listens on native_address(address).
Result<std::unique_ptr<WorkerWire>> bind_native_wire(const ChannelOptions& options,
                                                     const std::string& address);

/// Listens on `address`.
Result<std::unique_ptr<WorkerWire>> bind_stock_wire(const ChannelOptions& options,
                                                    const std::string& address);

}  // namespace ckpt
