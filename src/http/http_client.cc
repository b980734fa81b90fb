#include "http/http_client.h"

#include <httplib.h>
#include <poll.h>
#include <signal.h>

#include <memory>
#include <thread>

#include "base/fd.h"
#include "base/strings.h"
#include "http/connect.h"

namespace ckpt {
namespace {

/// A client whose connection is made by us, so that making it can be ended, too.
class Connection : public httplib::ClientImpl {
 public:
  Connection(const Endpoint& endpoint, Deadline deadline, const AbortSignal& abort)
      : ClientImpl(endpoint.host, endpoint.port),
        endpoint_(endpoint),
        deadline_(deadline),
        abort_(abort) {}

  Status connect_error() const { return connect_error_; }

 private:
  bool create_and_connect_socket(Socket& socket, httplib::Error& error) override {
    auto fd = connect_endpoint(endpoint_, deadline_, abort_);
    if (!fd) {
      connect_error_ = fd.status();
      error = httplib::Error::Connection;
      return false;
    }
    socket.sock = fd->release();
    return true;
  }

  const Endpoint& endpoint_;
  const Deadline deadline_;
  const AbortSignal& abort_;
  Status connect_error_;
};

/// Shuts the connection down when the deadline passes or the signal is raised: the library itself
/// only limits the time of each single read.
class Watch {
 public:
  Watch(Connection& connection, Deadline deadline, const AbortSignal& abort)
      : thread_([this, &connection, deadline, &abort] {
          for (;;) {
            pollfd waits[] = {{done_.fd(), POLLIN, 0}, {abort.fd(), POLLIN, 0}};
            ::poll(waits, 2, deadline.poll_ms());
            if (waits[0].revents != 0) return;
            if (abort.raised() || deadline.expired()) break;
          }
          cut_ = true;
          connection.stop();
        }) {}
  ~Watch() { end(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// True when the connection was cut: an answer whose end is the connection's end is then half.
  bool end() {
    done_.set();
    if (thread_.joinable()) thread_.join();
    return cut_;
  }

 private:
  bool cut_ = false;  // read after the thread has been joined
  EventFd done_;
  std::thread thread_;
};

/// Writing to a connection that the engine has reset must be an error here, not SIGPIPE to the
/// process that hosts us.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    if (sigismember(&before_, SIGPIPE) != 0) return;
    const timespec now{};
    while (::sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
};

Status no_answer(const Connection& connection, httplib::Error error, const std::string& what,
                 Deadline deadline, const AbortSignal& abort) {
  if (abort.raised()) return abort.cause();
  if (!connection.connect_error()) return connection.connect_error();
  if (deadline.expired()) {
    return deadline_exceeded(concat(what,
                                    ": no answer in time; the engine hangs or is still busy: "
                                    "look at its log, or give a longer --timeout"));
  }
  return peer_lost(concat(what, ": the connection broke before an answer came (",
                          httplib::to_string(error),
                          "); the engine died or closed it: look at its log"));
}

}  // namespace

Result<HttpResponse> http_request(const Endpoint& endpoint, const HttpRequest& request,
                                  Deadline deadline, const AbortSignal& abort) {
  const std::string what = concat(request.method, " ", endpoint.to_string(), request.path);
  const NoSigpipe no_sigpipe;
  // On the heap: the library's mutexes are destroyed unseen by the thread sanitizer, which would
  // take the next object at this place of the stack for them.
  const auto connection = std::make_unique<Connection>(endpoint, deadline, abort);
  // The watch ends the wait; a second of slack keeps the library's own limit out of its way.
  const auto slack = deadline.remaining() + std::chrono::seconds(1);
  connection->set_read_timeout(slack);
  connection->set_write_timeout(slack);

  httplib::Request out;
  out.method = request.method;
  out.path = endpoint.base_path + request.path;
  out.headers = {{"Host", endpoint.host_header()}, {"Accept", "application/json"}};
  if (!request.bearer_token.empty()) {
    out.headers.emplace("Authorization", "Bearer " + request.bearer_token);
  }
  if (!request.body.empty()) {
    out.body = request.body;
    out.headers.emplace("Content-Type", "application/json");
  }
  HttpResponse response;
  bool too_long = false;
  out.content_receiver = [&](const char* data, std::size_t bytes, std::uint64_t, std::uint64_t) {
    too_long = response.body.size() + bytes > kMaxHttpBody;
    if (!too_long) response.body.append(data, bytes);
    return !too_long;
  };

  httplib::Response answer;
  auto error = httplib::Error::Success;
  Watch watch(*connection, deadline, abort);
  bool sent = connection->send(out, answer, error);
  if (watch.end()) sent = false;
  if (too_long) return protocol_error(concat(what, ": the answer is longer than 16 MiB"));
  if (!sent) return no_answer(*connection, error, what, deadline, abort);
  response.status = answer.status;
  response.location = answer.get_header_value("Location");
  return response;
}

}  // namespace ckpt
