// Progress numbers on their way between hosts: what the ranks of a chain have received and taken,
// and what ranks that NCCL joins have filled and loaded. Who hears one publishes it as a number of
// its own host (collective/progress.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "transport/transport.h"

namespace ckpt {

/// A progress number on its way to another host.
struct ProgressSignal {
  /// No two values differ in one bit only.
  enum class Kind : std::uint32_t {
    kReceived = 1,  ///< `from` has so many chunks of its receive stream in its ring
    kForwarded =
        2,        ///< `from` has taken so many chunks out of the ring of the rank that hears this
    kFilled = 4,  ///< `from` has so many chunks of its fill stream in its staging
    kAcknowledged = 7,  ///< the worker of `from` has loaded so many buckets
  };
  Kind kind;
  std::uint64_t epoch;
  std::uint32_t pass;
  std::int32_t from;
  std::uint64_t value;
};

/// 32 bytes, little-endian: magic "CKS1", kind, epoch, pass, from, value.
using ProgressSignalBytes = std::array<std::byte, 32>;
ProgressSignalBytes encode_progress_signal(const ProgressSignal& signal);
std::optional<ProgressSignal> decode_progress_signal(std::span<const std::byte> bytes);

/// Hands the signals of a transport to the pass that they belong to; those of passes that are over
/// are dropped.
class ProgressSignals {
 public:
  using Handler = std::function<void(const ProgressSignal&)>;

  /// Takes the signal handler of `transport`, which must outlive it.
  explicit ProgressSignals(Transport& transport);
  ~ProgressSignals();
  ProgressSignals(const ProgressSignals&) = delete;
  ProgressSignals& operator=(const ProgressSignals&) = delete;

  /// From now on `other` gets what is no progress signal, on the transport's thread; once, before
  /// anybody can send such a thing.
  void hand_on(Transport::SignalHandler other);
  /// From now on `handler` gets the signals of this pass, on the transport's thread: it must not
  /// block.
  void open(std::uint64_t epoch, std::uint32_t pass, Handler handler);
  /// Afterwards the handler is not running and will not run.
  void close(std::uint64_t epoch, std::uint32_t pass);

 private:
  void dispatch(const Transport::Sender& sender, std::span<const std::byte> bytes);

  Transport& transport_;
  std::mutex mutex_;  // held while a handler runs, so that close() waits for it
  std::map<std::pair<std::uint64_t, std::uint32_t>, Handler> handlers_;
  Transport::SignalHandler other_;
};

}  // namespace ckpt
