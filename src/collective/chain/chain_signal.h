// What the ranks of a chain tell each other between hosts: how far the upstream is, and what the
// downstream has taken.
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
struct ChainSignal {
  enum class Kind : std::uint32_t {
    kReceived = 1,  ///< `from` has so many chunks of its receive stream in its ring
    kForwarded =
        2,  ///< `from` has taken so many chunks out of the ring of the rank that hears this
  };
  Kind kind;
  std::uint64_t epoch;
  std::uint32_t pass;
  std::int32_t from;
  std::uint64_t value;
};

/// 32 bytes, little-endian: magic "CKS1", kind, epoch, pass, from, value.
using ChainSignalBytes = std::array<std::byte, 32>;
ChainSignalBytes encode_chain_signal(const ChainSignal& signal);
std::optional<ChainSignal> decode_chain_signal(std::span<const std::byte> bytes);

/// Hands the signals of a transport to the pass that they belong to; those of passes that are over
/// are dropped.
class ChainSignals {
 public:
  using Handler = std::function<void(const ChainSignal&)>;

  /// Takes the signal handler of `transport`, which must outlive it.
  explicit ChainSignals(Transport& transport);
  ~ChainSignals();
  ChainSignals(const ChainSignals&) = delete;
  ChainSignals& operator=(const ChainSignals&) = delete;

  /// From now on `other` gets what is no signal of a chain, on the transport's thread; once, before
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
