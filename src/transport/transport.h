// Memory of one process read by another, while the owner's application does what it likes: the
// interface of all transports. Its contract is transport_contract_test.cc, which every transport
// passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "device/device.h"

namespace ckpt {

/// The longest signal, in bytes.
inline constexpr std::size_t kMaxSignalBytes = 64 << 10;
/// Signals that wait for one peer, in bytes; more are refused.
inline constexpr std::size_t kMaxQueuedSignalBytes = 16 << 20;

/// Memory that peers may read: what register_memory returns. The memory itself stays the caller's
/// and must live until close() has returned or the destructor has run. All methods from any thread.
class MemoryRegion {
 public:
  /// As close() with a deadline of 5 s.
  virtual ~MemoryRegion() = default;
  /// Names the region to readers. Never used twice by one transport.
  virtual std::uint64_t id() const = 0;
  virtual std::uint64_t bytes() const = 0;
  /// Refuses new reads at once, then waits until none is under way; when the deadline passes first,
  /// cuts the connections of those readers. Afterwards nobody reads the memory any more.
  /// Idempotent.
  virtual void close(Deadline deadline) = 0;
};

/// A region as its readers know it.
struct RemoteRegion {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;

  bool operator==(const RemoteRegion&) const = default;
};

/// Memory of a device that reads go straight into: what register_destination returns. Ends after
/// the reads and before the memory.
class Destination {
 public:
  virtual ~Destination() = default;
};

/// Bytes [offset, offset + bytes) of the owner's region `region`, to be put at `destination`.
struct ReadRange {
  std::uint64_t region = 0;
  std::uint64_t offset = 0;
  void* destination = nullptr;
  std::uint64_t bytes = 0;
};

/// Another process, known by its descriptor. Connected in the background, by the first use at the
/// latest. Must not outlive its transport. All methods from any thread.
class Peer {
 public:
  /// As close().
  virtual ~Peer() = default;
  /// Who it is, for messages: what connect was given, e.g. "rank 3 on host b".
  virtual const std::string& label() const = 0;
  /// Random name of the owner's transport: a restarted owner has another one.
  virtual const std::string& instance() const = 0;
  /// What the owner had registered when it made the descriptor, in order of registration.
  virtual std::span<const RemoteRegion> regions() const = 0;
  /// ok, or why the peer is lost (kPeerLost with its label). A lost peer stays lost: connect anew.
  virtual Status status() const = 0;
  /// Cuts the connection: reads under way fail with kAborted, their destinations are released.
  /// Idempotent; returns without waiting for the peer.
  virtual void close() = 0;
};

/// A read under way. All methods from any thread.
class Read {
 public:
  /// Cancels, then blocks until destination_released(). When data is still in flight 1 s later, the
  /// connection to the peer is cut (its status becomes kPeerLost), so this takes little longer.
  virtual ~Read() = default;
  /// True once the outcome stands; wait() then returns at once.
  virtual bool done() const = 0;
  /// The outcome: ok when every byte is at its place. When the deadline passes or `abort` is raised
  /// first, cancels the read with that cause. The destination may still be written to after an
  /// error: see destination_released.
  virtual Status wait(Deadline deadline, AbortSignal* abort = nullptr) = 0;
  /// Ends the read with `cause` (not ok) unless it has ended already. Does not wait.
  virtual void cancel(Status cause) = 0;
  /// True when the transport will not touch any destination of this read any more. After success it
  /// is true; after an error it may become true later. Until then the memory must not be reused.
  virtual bool destination_released() const = 0;
  /// All bytes asked for, and those that have arrived.
  virtual std::uint64_t bytes() const = 0;
  virtual std::uint64_t bytes_done() const = 0;
};

/// Counters since the transport was made.
struct TransportStatistics {
  std::uint64_t bytes_read = 0;     ///< arrived at destinations here
  std::uint64_t bytes_served = 0;   ///< handed to the network for readers
  std::uint64_t reads_done = 0;     ///< with success
  std::uint64_t reads_failed = 0;   ///< including cancelled ones
  std::uint64_t reads_refused = 0;  ///< requests of others that named stale or foreign memory
  std::uint64_t signals_sent = 0;
  std::uint64_t signals_received = 0;
};

/// How to name and check an owner.
struct ConnectOptions {
  /// For messages; empty: the label that the owner gave itself.
  std::string label;
  /// Called once, on the transport's thread, when the peer is lost (not by close). Must not block.
  std::function<void(const Status&)> on_lost;
};

/// One process's end of a transport. It serves reads of its registered memory on a thread of its
/// own, whatever the application does. All methods from any thread. The destructor closes; regions
/// must be gone before it, and peers and reads as well.
class Transport {
 public:
  /// Who sent a signal: the label of its transport and its instance (Peer::instance of the way
  /// back).
  struct Sender {
    std::string_view label;
    std::string_view instance;
  };
  /// Runs on the transport's thread: must not block, nor destroy anything of this transport.
  using SignalHandler = std::function<void(const Sender&, std::span<const std::byte>)>;
  /// Runs on the transport's thread with the outcome of a read, when it is known.
  using ReadCallback = std::function<void(const Status&)>;

  virtual ~Transport() = default;
  /// "ucx" or "callback".
  virtual std::string_view name() const = 0;
  virtual const std::string& instance() const = 0;

  /// Lets peers read `bytes` bytes at `data`. Regions larger than the device allows are registered
  /// in pieces; readers see one. 0 bytes are allowed. kResourceExhausted names the limit.
  virtual Result<std::unique_ptr<MemoryRegion>> register_memory(void* data,
                                                                std::uint64_t bytes) = 0;
  /// ok where reads can go straight into memory of such a device, once that is registered as a
  /// destination; else why not (kUnsupported): then they go into host memory, of which a transport
  /// need not be told.
  virtual Status can_read_into(DeviceKind kind) const;
  /// Lets reads write to [data, data + bytes), which lies on `device`; the device outlives it.
  /// After an error nothing is registered, and the caller reads into host memory instead.
  virtual Result<std::unique_ptr<Destination>> register_destination(Device& device, std::byte* data,
                                                                    std::uint64_t bytes);
  /// What another process needs to read the regions registered now: opaque bytes, with this
  /// transport's address, instance and region list.
  virtual Result<std::vector<std::byte>> descriptor() = 0;

  /// Checks a descriptor and makes a peer of it; says nothing of whether the owner lives.
  /// kProtocol: not a descriptor of this transport's kind and version.
  virtual Result<std::unique_ptr<Peer>> connect(std::span<const std::byte> descriptor,
                                                ConnectOptions options, Deadline deadline) = 0;

  /// Starts to read; never blocks on the peer. An error of the arguments (kInvalidArgument: a byte
  /// too much, an unknown region) is the outcome at once. Other outcomes: kPeerLost,
  /// kDeadlineExceeded, kAborted (closed), kFailedPrecondition (the owner was restarted),
  /// kNotFound (the owner has deregistered the region). Bytes that arrive are those that the region
  /// held at some moment of the read. Reads of one peer progress in the order of
  /// their calls. Ranges must not overlap; 0 bytes succeed at once.
  virtual std::unique_ptr<Read> read(Peer& peer, std::span<const ReadRange> ranges,
                                     Deadline deadline, ReadCallback callback = {}) = 0;

  /// Queues a small message for the peer's signal handler; those of one peer arrive in order, each
  /// once. ok says "queued": a later loss shows in Peer::status. kResourceExhausted when more than
  /// kMaxQueuedSignalBytes wait.
  virtual Status signal(Peer& peer, std::span<const std::byte> message) = 0;
  /// Replaces the handler; signals that arrived without one are kept for the first one. After it
  /// returns the earlier handler is not running. Not from inside a handler.
  virtual void set_signal_handler(SignalHandler handler) = 0;

  virtual TransportStatistics statistics() const = 0;
  /// Ends everything: reads fail with kAborted, peers are cut, later calls are
  /// kFailedPrecondition. Idempotent.
  virtual void close() = 0;
};

}  // namespace ckpt
