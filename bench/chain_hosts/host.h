// A host of the bench: a rank of the job with its worker.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint_engine/parameter_server.h"
#include "relay.h"
#include "seen.h"
#include "support/job.h"

namespace ckpt::bench {

struct Arguments {
  int rank = -1;
  int hosts = 0;
  std::string rendezvous;
  std::uint64_t bytes = 256 << 20;
  std::uint64_t ring_bytes = 0;  ///< 0: what the engine takes
  bool one_owner = true;
  int updates = 3;
  double rate = 125e6;
  bool check = false;
  double at_most = 0;
};

class Host {
 public:
  /// Joins the job and registers this rank's share of the tensors. `arguments` must outlive it.
  static Result<std::unique_ptr<Host>> create(const Arguments& arguments);

  /// What every host saw of one update, prepare and commit. Every byte is verified.
  Result<std::vector<Seen>> update();
  /// The same of the relay, which is connected by the first call.
  Result<std::vector<Seen>> relay();
  /// Frees what the relay holds.
  void end_relay() { relay_.reset(); }

  std::uint64_t total_bytes() const { return total_bytes_; }

 private:
  explicit Host(const Arguments& arguments) : arguments_(arguments) {}
  Status join();
  Status load();
  /// Runs `body` on all hosts at once.
  Result<std::vector<Seen>> measure(const std::function<Status(Seen&)>& body);

  const Arguments& arguments_;
  std::unique_ptr<ParameterServer> server_;
  testing::TestEngine engine_{1};
  std::unique_ptr<Relay> relay_;
  std::uint64_t total_bytes_ = 0, own_bytes_ = 0;
  std::uint64_t must_in_ = 0, must_out_ = 0;
};

}  // namespace ckpt::bench
