// A SpreadJob of which each rank is a process, so that ranks can be killed and stopped for real in
// the middle of a pass.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "collective/testing/spread_job.h"

namespace ckpt::testing {

/// What happens to a rank in a pass.
struct ProcessFault {
  int victim = -1;  ///< none
  /// Sent when the victim has compared its first buckets; it acknowledges none from then on.
  int signal = 0;
  /// Instead: when all ranks have compared their first buckets, each is told to abort its pass.
  bool aborts = false;
};

/// One process for each rank of a topology, forked: make it while this process has one thread, and
/// start no other.
class SpreadProcesses {
 public:
  SpreadProcesses(SpreadBackend backend, Topology topology);
  ~SpreadProcesses();
  SpreadProcesses(const SpreadProcesses&) = delete;
  SpreadProcesses& operator=(const SpreadProcesses&) = delete;

  struct Outcome {
    std::string text;  ///< PassOutcome::text()
    bool ok = false;
    bool stray_write = false;
    std::vector<Status> failures;  ///< of spreading lanes
    /// From the moment at which the pass was aborted until its last lane had ended.
    double seconds_to_end = 0;
  };
  /// One pass with a deadline, by rank; without a killed victim. A stopped one goes on when the
  /// others have ended, while they watch their memory.
  std::map<int, Outcome> run(double seconds, ProcessFault fault = {});
  /// A new process in the place of one that was killed.
  void restart(int rank);

 private:
  struct Process {
    pid_t pid = -1;
    FILE* to = nullptr;
    FILE* from = nullptr;
  };

  void start(int rank);
  void end(Process& process);
  [[noreturn]] void serve(int rank, FILE* commands, FILE* answers);
  /// One round of OwnProcess::meet.
  void meet(const std::vector<int>& ranks);

  const SpreadBackend backend_;
  const Topology topology_;
  std::map<int, Process> processes_;
  std::uint32_t passes_ = 0;
};

}  // namespace ckpt::testing
