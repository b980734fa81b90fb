// A whole job in one process: ranks as threads, engines as threads, for tests of what crosses
// ranks. The sanitizers see it all.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint_engine/parameter_server.h"
#include "checkpoint_engine/receiver.h"
#include "control/hub.h"

namespace ckpt::testing {

/// A tensor with its bytes.
struct OwnedTensor {
  TensorInfo info;
  std::vector<std::byte> bytes;
};
/// By name.
using Checkpoint = std::map<std::string, OwnedTensor>;

/// `layers` decoder layers of a small model with tensors of many sizes, one of them empty, one a
/// scalar, one odd.
Checkpoint small_model(int layers, std::uint64_t seed);
/// One tensor of `bytes` pseudo-random bytes.
OwnedTensor random_tensor(const std::string& name, std::uint64_t bytes, std::uint64_t seed);

/// The memory of one worker of an engine, with faults to order.
class TestLoader : public Loader {
 public:
  Result<std::span<std::byte>> destination(const TensorInfo& tensor) override;
  Status load(std::span<const TensorView> tensors) override;
  Status finish() override;

  /// Empty when everything that `expected` holds is here, byte for byte; else the first difference.
  std::string difference(const Checkpoint& expected) const;

  std::string refuse_tensor;      ///< destination() of this name is an error
  bool through_load = false;      ///< no destinations: everything comes by load()
  double seconds_per_tensor = 0;  ///< a slow engine
  std::string finish_error;       ///< finish() fails with this
  std::map<std::string, std::vector<std::byte>> memory;
  int finished = 0;
};

/// An inference engine: `workers` loaders and the call that updates them all.
class TestEngine {
 public:
  explicit TestEngine(int workers) : loaders(static_cast<std::size_t>(workers)) {}

  /// Updates every worker, each on a thread, `passes` times one after the other.
  Status update(const std::map<std::string, std::string>& addresses, int passes = 1);

  std::vector<TestLoader> loaders;
  ReceiverOptions options;
};

struct RingSizes {
  std::uint64_t ring, bucket, chunk;  ///< bucket 0: half of the ring
};
/// Whole small models fit into it.
constexpr RingSizes kLargeRing{8 << 20, 0, 1 << 20};
/// Used many times over by a small model; grows to its largest tensor.
constexpr RingSizes kSmallRing{64 << 10, 32 << 10, 16 << 10};

struct JobOptions {
  int ranks = 4;
  int instance_size = 0;              ///< 0: all recipients are one engine
  std::vector<std::string> host_ids;  ///< of each rank; empty: all on this host
  std::string collective = "auto";
  RingSizes sizes = kLargeRing;
  std::function<void(ParameterServerOptions&)> adjust;
};

/// Ranks that have joined; destroyed all at once.
class Job {
 public:
  explicit Job(JobOptions options = {});
  ~Job();

  /// Of its objects in /dev/shm that are there now, on any of its hosts.
  std::vector<std::string> shared_objects() const;
  int ranks() const { return static_cast<int>(servers_.size()); }
  ParameterServer& server(int rank) { return *servers_[static_cast<std::size_t>(rank)]; }

  /// Runs `body(rank, server)` on all ranks (or those given), a thread each; the outcome of each.
  std::vector<Status> run(const std::function<Status(int, ParameterServer&)>& body,
                          std::vector<int> ranks = {});
  /// Splits `checkpoint` over the ranks, registers and gathers.
  Status load(const std::string& name, const Checkpoint& checkpoint);
  /// One update of all ranks with `call`; reports of the ranks that succeeded.
  std::vector<Status> update(const std::string& name, const EngineCall& call,
                             UpdateOptions options = {});
  /// The call that updates `engines` (one for each instance of `instance_size` recipients).
  EngineCall call(std::vector<TestEngine>& engines, int passes = 1);
  std::vector<UpdateReport> reports;  ///< of the last update(), by rank

 private:
  JobOptions options_;
  std::string name_;
  std::unique_ptr<Hub> hub_;  // outlives the servers
  std::vector<std::unique_ptr<ParameterServer>> servers_;
};

/// The rings of a job of four ranks: one for a host ("auto") or, as on GPUs, one for every rank
/// ("peer").
struct Rings {
  const char* name;
  const char* collective;
  RingSizes sizes;
  std::vector<std::string> host_ids = {};  ///< of four ranks

  bool small() const { return sizes.ring == kSmallRing.ring; }
  friend void PrintTo(const Rings& rings, std::ostream* out) { *out << rings.name; }
};

}  // namespace ckpt::testing
