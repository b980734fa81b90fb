// The Python package's worker (0.4.2) as a state machine over a raw ZeroMQ REP socket, with verbs
// for what it does wrong. It loads nothing: it looks only at which of the four messages came.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace ckpt::test {

enum class Step { kNone, kHandle, kBucket, kRelease, kHook };
enum class Verb { kObey, kTraceback, kLeave, kHang };

struct StockScript {
  Step at = Step::kNone;         ///< where it does not obey
  int bucket = 1;                ///< which bucket, when at == kBucket
  Verb verb = Verb::kObey;       ///< what it does there
  std::function<void()> before;  ///< run there first: raise a signal, wait for the test
  std::function<void()> linger;  ///< run after a whole update, before its socket is closed
};

struct StockOutcome {
  bool returned = false;              ///< as after a whole update
  std::string raised;                 ///< the pickle of the exception that it was sent, as text
  std::vector<std::string> messages;  ///< everything it was sent
};

/// Runs one update as the worker of the Python package would. kHang waits for `stop`.
StockOutcome run_stock_worker(const std::string& address, const StockScript& script,
                              const std::atomic<bool>& stop);

/// The same in a thread; the destructor stops it and joins.
class StockWorker {
 public:
  explicit StockWorker(const std::string& address, StockScript script = {});
  ~StockWorker();
  StockOutcome wait();

 private:
  std::atomic<bool> stop_{false};
  StockOutcome outcome_;
  std::thread thread_;
};

}  // namespace ckpt::test
