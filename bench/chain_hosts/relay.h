// The least that a chain of hosts can take on this machine and its links: plain TCP sockets that
// pass the same bytes on, without tensors, workers or checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "checkpoint_engine/status.h"

namespace ckpt::bench {

class Relay {
 public:
  /// All hosts' texts, in their order.
  using Exchange = std::function<Result<std::vector<std::string>>(const std::string& mine)>;

  /// What one host moves: it sends `own` bytes of its own and then what it receives, `out` bytes in
  /// all.
  struct Share {
    std::uint64_t own = 0, in = 0, out = 0;
  };

  /// Connects the hosts to a circle; on every host at once. `near` is an address that says which
  /// interface to use, "HOST:PORT" with a literal IPv4 address.
  static Result<Relay> connect(int rank, const std::string& near, const Exchange& exchange,
                               Deadline deadline);

  /// Returns when everything is here and has left.
  Status run(const Share& share, Deadline deadline);

 private:
  Relay() = default;
  Status receive(std::uint64_t bytes);
  Status send(const Share& share);

  UniqueFd from_, to_;
  std::vector<std::byte> own_, received_;
  std::uint64_t in_ = 0, out_ = 0;  // so far
};

}  // namespace ckpt::bench
