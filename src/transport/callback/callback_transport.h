// A transport served by functions: for transfer engines of other languages, and for tests with
// faults.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "transport/transport.h"

namespace ckpt {

/// The functions of an engine that moves bytes. Called from any thread, for different peers at the
/// same time; they may block until their deadline.
struct TransportCallbacks {
  /// Who is read from, out of its descriptor.
  struct Remote {
    std::string address;
    std::string label;
    std::string instance;
  };
  /// Contiguous memory of the owner and where it goes.
  struct Piece {
    std::uint64_t region = 0;
    std::uint64_t remote_address = 0;
    void* destination = nullptr;
    std::uint64_t bytes = 0;
  };

  /// How other processes name us (host and port of a transfer engine, for instance).
  std::string address;
  std::function<Status(std::uint64_t region, void* data, std::uint64_t bytes)> register_memory;
  /// Returns when nobody reads the memory any more.
  std::function<void(std::uint64_t region, void* data, Deadline deadline)> deregister_memory;
  /// Copies all pieces, which are not empty. Returns when no destination will be written any more,
  /// soon after `abort` is raised. kPeerLost ends the peer; see Transport::read for other codes.
  std::function<Status(const Remote& owner, std::span<const Piece> pieces, Deadline deadline,
                       AbortSignal& abort)>
      read;
  /// Makes memory a destination of reads, of whatever device the engine knows how to write to; both
  /// or none. Empty: reads go into host memory, of which the engine is told nothing.
  std::function<Status(void* data, std::uint64_t bytes)> register_destination;
  std::function<void(void* data)> deregister_destination;
  /// Hands one message to the other side's deliver_signal. Empty: signals are kUnsupported.
  std::function<Status(const Remote& owner, std::span<const std::byte> message)> signal;
};

/// A transport whose incoming signals are brought by its owner.
class CallbackTransport : public Transport {
 public:
  /// Runs the signal handler on the calling thread; one call at a time.
  virtual void deliver_signal(std::string_view label, std::string_view instance,
                              std::span<const std::byte> message) = 0;
};

/// `label`: how others shall know it. `callbacks` must stay callable until the transport, its peers
/// and reads are gone; all but `signal` and those for destinations must be given. Each peer has a
/// thread, on which its reads and signals run in the order of their calls.
std::unique_ptr<CallbackTransport> make_callback_transport(std::string label,
                                                           TransportCallbacks callbacks);

}  // namespace ckpt
