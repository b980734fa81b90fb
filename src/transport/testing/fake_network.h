// Transports of one process joined by a network that can be damaged. For tests.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "transport/callback/callback_transport.h"

namespace ckpt::testing {

/// Must outlive its transports. All methods from any thread.
class FakeNetwork {
 public:
  std::shared_ptr<CallbackTransport> make_transport(std::string label);

  // Damage, named by the transport it hits as an owner.
  /// Reads and signals fail with kPeerLost, those under way too.
  void die(const Transport& owner);
  /// Reads hang until their deadline, an abort or resume().
  void stop(const Transport& owner);
  void resume(const Transport& owner);
  /// Every read takes this much longer.
  void delay(const Transport& owner, std::chrono::milliseconds by);
  /// The same, and no abort is noticed meanwhile: the bytes arrive.
  void delay_stubbornly(const Transport& owner, std::chrono::milliseconds by);
  /// The next read arrives with one bit changed.
  void corrupt_next_read(const Transport& owner);
  /// The next `count` signals vanish.
  void drop_signals(const Transport& owner, int count);

 private:
  struct Region {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    int readers = 0;
  };
  struct Node {
    std::string instance;
    std::weak_ptr<CallbackTransport> transport;
    std::map<std::uint64_t, Region> regions;
    bool dead = false, stopped = false, corrupt = false, stubborn = false;
    std::chrono::milliseconds delay{0};
    int signals_to_drop = 0;
  };
  using Remote = TransportCallbacks::Remote;
  using Piece = TransportCallbacks::Piece;

  Status read(const Remote& remote, std::span<const Piece> pieces, Deadline deadline,
              AbortSignal& abort);
  Status wait_until_willing(std::unique_lock<std::mutex>& lock, Node& node, const Remote& remote,
                            Deadline deadline, AbortSignal& abort);
  Status copy(std::unique_lock<std::mutex>& lock, Node& node, const Remote& remote,
              const Piece& piece);
  Status signal(const Node& from, const std::string& from_label, const Remote& remote,
                std::span<const std::byte> message);
  TransportCallbacks callbacks(const std::shared_ptr<Node>& node, const std::string& label);
  Node& node_of(const Transport& transport);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<Node>> nodes_;  // by address; guarded by mutex_
};

}  // namespace ckpt::testing
