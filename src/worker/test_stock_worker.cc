#include "worker/test_stock_worker.h"

#include <zmq.h>

#include <chrono>
#include <optional>
#include <utility>

namespace ckpt::test {
namespace {

const std::string kNone = {'\x80', '\x03', 'N', '.'};

class RepSocket {
 public:
  explicit RepSocket(const std::string& address) {
    const int poll_ms = 20;
    ::zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &poll_ms, sizeof(poll_ms));
    ::zmq_connect(socket_, address.c_str());
  }
  ~RepSocket() {
    // pyzmq's default linger sends what is left; the context would wait for it.
    const int linger = 200;
    ::zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof(linger));
    ::zmq_close(socket_);
    ::zmq_ctx_term(context_);
  }
  RepSocket(const RepSocket&) = delete;
  RepSocket& operator=(const RepSocket&) = delete;

  std::optional<std::string> receive(const std::atomic<bool>& stop) {
    zmq_msg_t message;
    ::zmq_msg_init(&message);
    while (::zmq_msg_recv(&message, socket_, 0) < 0) {
      if (stop) return std::nullopt;
    }
    std::string text(static_cast<const char*>(::zmq_msg_data(&message)), ::zmq_msg_size(&message));
    ::zmq_msg_close(&message);
    return text;
  }
  void send(const std::string& text) { ::zmq_send(socket_, text.data(), text.size(), 0); }

 private:
  void* context_ = ::zmq_ctx_new();
  void* socket_ = ::zmq_socket(context_, ZMQ_REP);
};

}  // namespace

StockOutcome run_stock_worker(const std::string& address, const StockScript& script,
                              const std::atomic<bool>& stop) {
  StockOutcome outcome;
  RepSocket socket(address);
  Step step = Step::kHandle;
  int buckets = 0;
  bool raise_at_next = false;
  while (true) {
    const auto message = socket.receive(stop);
    if (!message) return outcome;
    outcome.messages.push_back(*message);
    if (message->find("builtins\nRuntimeError") != std::string::npos) {
      outcome.raised = *message;
      return outcome;
    }
    if (raise_at_next) return outcome;
    if (step == Step::kBucket && *message == kNone) step = Step::kRelease;
    if (step == Step::kHook && *message != kNone) return outcome;
    const bool here = step == script.at && (step != Step::kBucket || ++buckets == script.bucket);
    const Verb verb = here ? script.verb : Verb::kObey;
    if (here && script.before) script.before();
    if (verb == Verb::kLeave) return outcome;
    while (verb == Verb::kHang && !stop) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (stop) return outcome;
    socket.send(
        verb == Verb::kTraceback
            ? "Traceback (most recent call last):\n  File \"w.py\"\nRuntimeError: no memory\n"
            : "");
    if (verb == Verb::kTraceback && step == Step::kHandle) raise_at_next = true;
    if (step == Step::kHook) {
      outcome.returned = true;
      if (script.linger) script.linger();
      return outcome;
    }
    if (step == Step::kRelease) step = Step::kHook;
    if (step == Step::kHandle) step = Step::kBucket;
  }
}

StockWorker::StockWorker(const std::string& address, StockScript script) {
  thread_ = std::thread([this, address, owned = std::move(script)] {
    outcome_ = run_stock_worker(address, owned, stop_);
  });
}

StockWorker::~StockWorker() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

StockOutcome StockWorker::wait() {
  thread_.join();
  return outcome_;
}

}  // namespace ckpt::test
