// Threads of a server that answer calls, in the order of their arrival.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"

namespace ckpt {

/// A connection of a server, and what was read of it.
struct Connection {
  UniqueFd fd;
  Deadline deadline = Deadline::after_seconds(0);
  std::string head;
  bool head_cut = false;  ///< longer than a head may be
  bool ending = false;    ///< answered; the client has to close it
};

/// All methods from any thread, stop() from one.
class CallThreads {
 public:
  using Answer = std::function<void(Connection)>;
  /// `answer` runs on the threads, which live until stop(). At most `most_waiting` calls wait.
  CallThreads(int threads, std::size_t most_waiting, Answer answer);
  ~CallThreads() { stop(); }
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  /// False, and `connection` is as it was, when too many wait.
  bool push(Connection& connection);
  /// Returns when all that was pushed has been answered. Again is fine.
  void stop();

 private:
  void work();

  const std::size_t most_waiting_;
  const Answer answer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Connection> waiting_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ckpt
