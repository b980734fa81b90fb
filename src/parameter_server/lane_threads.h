// The lanes of a pass, each on a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint_engine/parameter_server.h"

namespace ckpt {

/// Used by one thread.
class LaneThreads {
 public:
  /// `on_failure` is told at once what a lane failed of, on the lane's thread.
  explicit LaneThreads(std::function<void(const Status&)> on_failure)
      : on_failure_(std::move(on_failure)) {}
  ~LaneThreads() { join(); }
  LaneThreads(const LaneThreads&) = delete;
  LaneThreads& operator=(const LaneThreads&) = delete;

  /// Runs `body`; `bytes` says afterwards how much it moved. Both outlive join(). An exception of
  /// `body` is its failure.
  Status start(std::string name, std::function<Status()> body,
               std::function<std::uint64_t()> bytes);
  void join();
  /// After join(): the first failure. Adds a stage for each name, lanes of one name being one
  /// stage.
  Status report(std::vector<StageReport>& stages) const;

 private:
  struct Lane {
    std::string name;
    std::function<Status()> body;
    std::function<std::uint64_t()> bytes;
    double seconds = 0;
    Status status;
    std::thread thread;
  };
  void run(Lane& lane);

  const std::function<void(const Status&)> on_failure_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace ckpt
