// The receiving side: how an inference engine takes new weights in place. One call per update and
// worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "checkpoint_engine/status.h"
#include "checkpoint_engine/tensor.h"

namespace [[gnu::visibility("default")]] ckpt {

/// A tensor that lies in the ring, for as long as Loader::load runs.
struct TensorView {
  const TensorInfo* info;
  const std::byte* data;  ///< 256-byte aligned
  bool on_device;         ///< `data` is a pointer of the GPU
  /// Whoever holds it keeps `data` mapped after load() has returned, though with other content.
  std::shared_ptr<const void> ring;
};

/// What an engine does with tensors. Called on the thread that runs update_weights, never
/// concurrently.
class Loader {
 public:
  virtual ~Loader() = default;

  /// The memory that `tensor` is to be copied into: exactly tensor.bytes bytes, valid until
  /// finish() returns. The receiver checks the digest on the way. An empty span for a tensor
  /// with bytes: the engine wants to see it in load() instead. An error (an unknown name, a shape
  /// that does not fit) fails the update on all ranks, with this text.
  virtual Result<std::span<std::byte>> destination(const TensorInfo& tensor) = 0;
  /// The tensors of one bucket for which destination() gave nothing, verified already. Must be done
  /// with them on return.
  virtual Status load(std::span<const TensorView> tensors);
  /// Everything has arrived and the ring is gone: what an engine does after loading.
  virtual Status finish();
};

struct ReceiverOptions {
  /// No message from the rank for this long ends the update with kDeadlineExceeded.
  double timeout_seconds = 300;
  /// Compares digests; the rank may forbid it, in which case the report says so.
  bool verify = true;
  /// Must equal the job's secret where one is set.
  std::string secret;
  /// A rank whose process does not answer for so long (stopped, not merely busy) is lost; a killed
  /// one is noticed at once.
  double heartbeat_timeout_seconds = 5;
  /// Asked ten times a second while the rank is waited for, on the waiting thread; an error ends
  /// the update on every rank. May be empty.
  std::function<Status()> while_waiting;
};

struct ReceiveReport {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  std::uint64_t verified_tensors = 0;
  std::uint64_t buckets = 0;
  double load_seconds = 0;  ///< spent in copying, checking and load()
};

/// Connects to `address` (what the rank gave to the engine for this worker, "ipc://@...v2.sock"),
/// receives one whole update and returns when every worker of it has loaded everything and this
/// one's Loader::finish has succeeded, or with the first cause when it failed anywhere (kPeerLost
/// when the rank has gone); the weights are then incomplete until a later update succeeds. An
/// address of another kind is kUnsupported: it belongs to the Python package's rank.
/// Blocking; threads may run several calls for different addresses at once.
Result<ReceiveReport> update_weights(const std::string& address, Loader& loader,
                                     const ReceiverOptions& options = {});

}  // namespace ckpt
