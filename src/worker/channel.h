// The channel of one rank to the worker it updates: who connects, what lies in the ring, what has
// been loaded. Two wires behind one interface: `native` (our receiver) and `stock` (the worker of
// the Python package).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "checkpoint_engine/tensor.h"
#include "device/device.h"

namespace ckpt {

enum class Wire { kNative, kStock };

struct ChannelOptions {
  std::string job;
  int rank = 0;
  std::uint64_t epoch = 0;
  std::string secret;               ///< empty: none; the native wire proves it without sending it
  bool verify = true;               ///< native workers compare digests before they acknowledge
  std::uint64_t total_tensors = 0;  ///< of one pass; a native worker refuses a release before them
  std::uint64_t total_bytes = 0;
  /// A worker whose process does not answer for so long (stopped, not merely busy) is lost. A
  /// closed connection and the end of its process are a loss at once.
  double heartbeat_timeout_seconds = 5;
  /// Who has connected to the stock wire and not spoken ZeroMQ for so long is no worker.
  double handshake_timeout_seconds = 3;
  /// After an abort: how long a worker whose engine was called may take to connect and hear of it.
  double late_worker_seconds = 5;
};

struct WorkerHello {
  Wire wire = Wire::kNative;
  std::int64_t pid = 0;
  std::string version;  ///< of the worker's software, where it says so
};

/// Bytes of a tensor that lie in the ring. Today always the whole tensor: begin 0, bytes ==
/// info->bytes.
struct RingEntry {
  const TensorInfo* info;
  std::uint64_t ring_offset;
  std::uint64_t begin;
  std::uint64_t bytes;
  std::uint64_t digest;  ///< of the whole tensor
};

struct BucketAck {
  std::uint32_t bucket = 0;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  std::uint64_t verified_tensors = 0;  ///< 0 on the stock wire
  double load_seconds = 0;             ///< as the worker measured it; 0 on the stock wire
  /// Of load_seconds: digesting and comparing, where that is a pass of its own (rings on a GPU).
  double verify_seconds = 0;
};

/// States, in order: bound -> connected -> ring open -> (announce/ack)* -> released -> (finish)
/// bound again, for a further pass. A call in the wrong state is kFailedPrecondition that names
/// both, and changes nothing. Any other error makes the channel failed: every later call returns
/// that first cause; only abort() and the destructor are left.
///
/// One thread uses a channel at a time. All waits end at the deadline, when `abort` is raised (its
/// cause is returned), and when the worker is gone (kPeerLost) or reports an error (kPeerError with
/// the worker's text; kDataLoss where it found a wrong digest).
class WorkerChannel {
 public:
  /// Binds both endpoints; nobody has been told of them yet.
  static Result<std::unique_ptr<WorkerChannel>> bind(ChannelOptions options);

  virtual ~WorkerChannel() = default;

  /// What the engine is given for this worker:
  /// "ipc://@checkpoint-engine-<job>-<rank>-<epoch>.v2.sock".
  virtual const std::string& address() const = 0;
  /// Readable for poll(2) when something may have happened: a connection, an answer, a loss.
  virtual int poll_fd() const = 0;

  /// Waits for a worker. The first that connects decides the wire of this pass. A second one is
  /// refused on the native wire and waits on the stock wire, until a further pass or abort().
  virtual Result<WorkerHello> accept(Deadline deadline, AbortSignal& abort) = 0;
  /// True when a worker has connected since finish(): a further pass begins with accept(). Does not
  /// wait.
  virtual bool connected_again() = 0;

  /// Lets the worker open the ring; returns when it has.
  virtual Status open_ring(const BufferHandle& ring, Deadline deadline, AbortSignal& abort) = 0;
  /// How many buckets may be announced and not yet acknowledged: 1 on the stock wire.
  virtual int window() const = 0;
  /// Everything named lies in the ring, complete. Does not wait.
  virtual Status announce(std::uint32_t bucket, std::span<const RingEntry> entries) = 0;
  /// The acknowledgement of the oldest announced bucket: loaded (and verified), its ring space is
  /// no longer read.
  virtual Result<BucketAck> wait_ack(Deadline deadline, AbortSignal& abort) = 0;
  /// The worker drops the ring; returns when it has.
  virtual Status release(Deadline deadline, AbortSignal& abort) = 0;
  /// The worker runs what it does after loading; returns when it has succeeded.
  virtual Status finish(Deadline deadline, AbortSignal& abort) = 0;

  /// Tells the worker that the update has failed, with the cause, so that its engine's call fails.
  /// Never waits: a worker may be busy loading, and a stock one can only be told when it has given
  /// the answer it owes. A closer (closer.h) owns the channel until the worker has gone, or
  /// `deadline` passes; then it cuts the connection, unless the worker has a ring in GPU memory. A
  /// worker that has stopped answering has not gone, and is waited for without a bound. `ring` is
  /// kept until the worker can no longer be reading it; in host memory until `deadline` at the
  /// latest. A worker that connects within late_worker_seconds afterwards is told too. Where no
  /// engine was called yet, destroying the channel is enough.
  static void abort(std::unique_ptr<WorkerChannel> channel, const Status& cause, Deadline deadline,
                    std::shared_ptr<void> ring = nullptr);
};

}  // namespace ckpt
