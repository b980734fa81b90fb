#include "http/http_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/strings.h"
#include "http/call_threads.h"
#include "http/http_exchange.h"
#include "http/listening_socket.h"

namespace ckpt {
namespace {

using nlohmann::json;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

/// Lines of a request that are longer are no request.
constexpr std::size_t kMaxHead = 64u << 10;
/// Connections without a call under way; the one that was opened first makes room for the next.
constexpr std::size_t kMostOpen = 256;
/// Calls that wait for a thread; more are refused.
constexpr std::size_t kMostWaiting = 64;
constexpr int kQuickThreads = 2;
/// For a client to read its answer and close the connection.
constexpr auto kEndTime = 1s;
/// Where no descriptor is left.
constexpr auto kAcceptPause = 10ms;

bool is_quick(const std::vector<std::string>& quick_paths, std::string_view head) {
  constexpr std::string_view kGet = "GET ";
  if (!head.starts_with(kGet)) return false;
  const auto target =
      head.substr(kGet.size(), head.find_first_of(" \r\n", kGet.size()) - kGet.size());
  const auto path = target.substr(0, target.find('?'));
  return std::find(quick_paths.begin(), quick_paths.end(), path) != quick_paths.end();
}

/// Of a small answer to a new connection, which takes it without waiting.
void send_busy(int fd) {
  const std::string body = error_answer(503, "too many calls wait; come again later").body;
  const std::string text = concat(
      "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: "
      "application/json\r\nContent-Length: ",
      body.size(), "\r\n\r\n", body);
  (void)::send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

ServerAnswer error_answer(int status, const std::string& message) {
  const json body = {{"error", {{"message", message}, {"code", status}}}};
  // Messages quote what came from outside: bytes that are no UTF-8 must not throw.
  return {status, body.dump(-1, ' ', false, json::error_handler_t::replace)};
}

class HttpServer::Impl {
 public:
  Impl(HttpServerOptions options, HttpHandler handler)
      : options_(std::move(options)), exchange_(options_, std::move(handler)) {}
  ~Impl() { stop(); }

  Status start() {
    CKPT_ASSIGN_OR_RETURN(listener_, options_.socket_path.empty()
                                         ? listen_tcp(options_.host, options_.port)
                                         : listen_unix(options_.socket_path));
    const auto answer = [this](Connection connection) { serve(std::move(connection)); };
    calls_ = std::make_unique<CallThreads>(options_.threads, kMostWaiting, answer);
    quick_calls_ = std::make_unique<CallThreads>(kQuickThreads, kMostWaiting, answer);
    thread_ = std::thread([this] { attend(); });
    return Status::ok();
  }

  void stop() {
    const std::lock_guard lock(stop_mutex_);
    if (!thread_.joinable()) return;
    stop_.set();
    thread_.join();
    listener_.fd.reset();
    if (!options_.socket_path.empty()) ::unlink(options_.socket_path.c_str());
    quick_calls_->stop();
    calls_->stop();
  }

  const Endpoint& endpoint() const { return listener_.endpoint; }

 private:
  using Connections = std::list<Connection>;

  /// The thread that has all connections without a call under way.
  void attend() {
    Connections open;
    for (;;) {
      std::vector<pollfd> waits = {{stop_.fd(), POLLIN, 0},
                                   {answered_event_.fd(), POLLIN, 0},
                                   {listener_.fd.get(), POLLIN, 0}};
      const std::size_t first = waits.size();
      Deadline wake = Deadline::after(std::chrono::hours(1));
      for (const Connection& each : open) {
        waits.push_back({each.fd.get(), POLLIN, 0});
        wake = wake.earlier(each.deadline);
      }
      if (::poll(waits.data(), waits.size(), wake.poll_ms()) < 0) continue;  // a signal
      if (waits[0].revents != 0) return;
      auto wait = waits.begin() + static_cast<std::ptrdiff_t>(first);
      for (auto each = open.begin(); each != open.end(); ++wait) {
        const bool stays = (wait->revents == 0 || read_some(*each)) && !each->deadline.expired();
        each = stays ? std::next(each) : open.erase(each);
      }
      if (waits[1].revents != 0) take_answered(open);
      if (waits[2].revents != 0) accept_all(open);
    }
  }

  void accept_all(Connections& open) {
    for (;;) {
      UniqueFd fd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) {
        if (errno == EMFILE || errno == ENFILE) make_room(open);
        return;
      }
      if (open.size() >= kMostOpen) open.pop_front();
      Connection& connection = open.emplace_back();
      connection.fd = std::move(fd);
      connection.deadline = Deadline::after_seconds(options_.head_seconds);
    }
  }

  void make_room(Connections& open) {
    if (!open.empty()) return open.pop_front();
    pollfd stop = {stop_.fd(), POLLIN, 0};
    ::poll(&stop, 1, Deadline::after(kAcceptPause).poll_ms());
  }

  /// False when the connection has gone, or to a thread.
  bool read_some(Connection& connection) {
    char buffer[16 << 10];
    const ssize_t count = ::recv(connection.fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    if (connection.ending) return true;  // what nobody wants to know
    const std::size_t seen =
        connection.head.size() - std::min<std::size_t>(connection.head.size(), 3);
    connection.head.append(buffer, static_cast<std::size_t>(count));
    const bool whole = connection.head.find("\r\n\r\n", seen) != std::string::npos;
    connection.head_cut = !whole && connection.head.size() > kMaxHead;
    if (!whole && !connection.head_cut) return true;
    CallThreads& threads =
        is_quick(options_.quick_paths, connection.head) ? *quick_calls_ : *calls_;
    if (threads.push(connection)) return false;
    send_busy(connection.fd.get());
    end(connection);
    return true;
  }

  /// A connection that is closed while there is something to read is reset, and the answer may be
  /// lost with it.
  static void end(Connection& connection) {
    ::shutdown(connection.fd.get(), SHUT_WR);
    connection.ending = true;
    connection.deadline = Deadline::after(kEndTime);
  }

  /// On a thread of either kind.
  void serve(Connection connection) {
    exchange_.serve(
        {connection.fd.get(), std::move(connection.head), connection.head_cut, stop_.fd()});
    end(connection);
    const std::lock_guard lock(answered_mutex_);
    answered_.push_back(std::move(connection));
    answered_event_.set();
  }

  void take_answered(Connections& open) {
    const std::lock_guard lock(answered_mutex_);
    answered_event_.clear();
    open.splice(open.end(), answered_);
  }

  const HttpServerOptions options_;
  HttpExchange exchange_;
  ListeningSocket listener_;
  EventFd stop_, answered_event_;
  std::mutex answered_mutex_;
  Connections answered_;
  std::unique_ptr<CallThreads> calls_, quick_calls_;
  std::thread thread_;
  std::mutex stop_mutex_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options,
                                                      HttpHandler handler) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(handler));
  CKPT_RETURN_IF_ERROR(impl->start());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const Endpoint& HttpServer::endpoint() const { return impl_->endpoint(); }
void HttpServer::stop() { impl_->stop(); }

}  // namespace ckpt
