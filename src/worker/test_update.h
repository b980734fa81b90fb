// Both ends of an update in the tests of this folder: tensors in a ring, a rank that runs a pass,
// an engine that loads, and the same in processes of their own.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/shared_memory.h"
#include "checkpoint_engine/receiver.h"
#include "worker/channel.h"

namespace ckpt::test {

/// Far beyond what anything here takes; only a hang meets it.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }

/// "test-<random>": endpoints and rings of tests that run side by side do not meet.
std::string unique_job();

/// A few tensors of awkward sizes in a host ring, 256 bytes apart, with their digests.
class Ring {
 public:
  explicit Ring(const std::string& job, int tensors = 5);
  ~Ring();

  BufferHandle handle() const;
  std::vector<RingEntry> entries() const { return entries_; }
  /// Entries [begin, end).
  std::span<const RingEntry> entries(std::size_t begin, std::size_t end) const {
    return std::span(entries_).subspan(begin, end - begin);
  }
  std::span<std::byte> content(std::size_t tensor);
  std::uint64_t total_bytes() const;
  std::size_t size() const { return entries_.size(); }

 private:
  SharedMemory memory_;
  std::vector<std::unique_ptr<TensorInfo>> infos_;
  std::vector<RingEntry> entries_;
};

ChannelOptions channel_options(const std::string& job, const Ring& ring);
std::unique_ptr<WorkerChannel> bind(const ChannelOptions& options);

/// The rank's part of one pass, in buckets of two tensors, as many ahead as the window allows.
struct Pass {
  WorkerHello hello;
  BucketAck sum;
};
Result<Pass> run_pass(WorkerChannel& channel, const Ring& ring, AbortSignal& abort);

/// An engine with verbs.
class TestLoader : public Loader {
 public:
  std::set<std::string> by_load;  ///< names that it takes in load()
  std::function<Status(const TensorInfo&)> before;
  Status at_finish;
  bool finished = false;
  std::map<std::string, std::vector<std::byte>> held;

  Result<std::span<std::byte>> destination(const TensorInfo& tensor) override;
  Status load(std::span<const TensorView> tensors) override;
  Status finish() override;
  /// Everything in `ring` is held, byte for byte.
  bool holds(Ring& ring) const;
};

using Received = std::future<Result<ReceiveReport>>;
Received receive_in_thread(const std::string& address, Loader& loader,
                           ReceiverOptions options = {});

/// This test program in another process, in a role: see run_role in test_update.cc.
class RoleProcess {
 public:
  RoleProcess(const std::string& role, const std::vector<std::string>& arguments);
  ~RoleProcess();
  RoleProcess(const RoleProcess&) = delete;
  RoleProcess& operator=(const RoleProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits for the process to have stopped itself.
  void wait_until_stopped() const;
  /// Its exit code, or minus the signal that ended it.
  int wait();
  /// Waits for a line that it wrote.
  std::string read_line();

 private:
  pid_t pid_ = -1;
  UniqueFd output_;
};

/// Runs `role` when the program was started as a RoleProcess; -1 when it was not.
int run_role(int argc, char** argv);

}  // namespace ckpt::test
