#include "http/scripted_server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "base/strings.h"

namespace ckpt {
namespace {

void require(bool good, const char* what) {
  if (!good) throw std::runtime_error(concat("scripted server: ", what, ": ", strerror(errno)));
}

/// Waits for input or the end of the test; false at the end, and when the client has gone.
bool read_some(int fd, int stop, std::string& text) {
  pollfd waits[] = {{fd, POLLIN, 0}, {stop, POLLIN, 0}};
  ::poll(waits, 2, -1);
  if (waits[1].revents != 0) return false;
  char buffer[4096];
  const auto count = ::recv(fd, buffer, sizeof(buffer), 0);
  if (count > 0) text.append(buffer, static_cast<std::size_t>(count));
  return count > 0;
}

bool read_request(int fd, int stop, ScriptedRequest& request) {
  std::string text;
  std::size_t head;
  while ((head = text.find("\r\n\r\n")) == std::string::npos) {
    if (!read_some(fd, stop, text)) return false;
  }
  const auto line = split(text.substr(0, text.find("\r\n")), ' ');
  request.method = line.at(0);
  request.path = line.at(1);
  request.headers = text.substr(0, head);
  const auto length = request.headers.find("Content-Length: ");
  const std::size_t bytes =
      length == std::string::npos ? 0 : std::stoul(request.headers.substr(length + 16));
  while (text.size() < head + 4 + bytes) {
    if (!read_some(fd, stop, text)) return false;
  }
  request.body = text.substr(head + 4, bytes);
  return true;
}

void send_text(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto count = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (count <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

void play(int fd, int stop, const ScriptedAnswer& answer) {
  const std::string head =
      concat("HTTP/1.1 ", answer.status, " Scripted\r\nContent-Length: ", answer.body.size(),
             "\r\nConnection: close\r\n", answer.headers, "\r\n");
  pollfd end = {stop, POLLIN, 0};
  switch (answer.verb) {
    case ScriptedAnswer::Verb::kAnswer:
      return send_text(fd, head + answer.body);
    case ScriptedAnswer::Verb::kTrickle:
      for (const char c : head + answer.body) {
        send_text(fd, std::string_view(&c, 1));
        if (::poll(&end, 1, 20) != 0) return;
      }
      return;
    case ScriptedAnswer::Verb::kHang:
      ::poll(&end, 1, -1);
      return;
    case ScriptedAnswer::Verb::kReset: {
      const linger now = {1, 0};
      ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
      return;
    }
    case ScriptedAnswer::Verb::kCut:
      return send_text(fd, head + answer.body.substr(0, answer.body.size() / 2));
    case ScriptedAnswer::Verb::kGarbage:
      return send_text(fd, "SSH-2.0-OpenSSH_9.2\r\n");
  }
}

}  // namespace

ScriptedServer::ScriptedServer(const std::string& host) {
  if (host.starts_with('/')) {
    listen_unix(host);
  } else {
    listen_tcp(host);
  }
  require(::listen(listener_.get(), 16) == 0, "listen");
  acceptor_ = std::thread([this] { accept_all(); });
}

ScriptedServer::~ScriptedServer() {
  stop_.set();
  acceptor_.join();
  for (auto& connection : connections_) connection.join();
  if (!endpoint_.socket_path.empty()) ::unlink(endpoint_.socket_path.c_str());
}

void ScriptedServer::listen_tcp(const std::string& host) {
  sockaddr_storage address{};
  socklen_t length;
  if (host.find(':') != std::string::npos) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
    v6.sin6_family = AF_INET6;
    ::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr);
    length = sizeof(v6);
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address);
    v4.sin_family = AF_INET;
    ::inet_pton(AF_INET, host.c_str(), &v4.sin_addr);
    length = sizeof(v4);
  }
  listener_.reset(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  require(::bind(listener_.get(), name, length) == 0, "bind");
  require(::getsockname(listener_.get(), name, &length) == 0, "getsockname");
  endpoint_.host = host;
  endpoint_.port =
      ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

void ScriptedServer::listen_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  require(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0,
          "bind");
  endpoint_.socket_path = path;
}

void ScriptedServer::accept_all() {
  for (;;) {
    pollfd waits[] = {{listener_.get(), POLLIN, 0}, {stop_.fd(), POLLIN, 0}};
    ::poll(waits, 2, -1);
    if (waits[1].revents != 0) return;
    const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) connections_.emplace_back([this, fd] { serve(fd); });
  }
}

void ScriptedServer::serve(int fd) {
  const UniqueFd connection(fd);
  ScriptedRequest request;
  if (!read_request(fd, stop_.fd(), request)) return;
  play(fd, stop_.fd(), next_answer(request));
}

void ScriptedServer::script(const std::string& path, ScriptedAnswer answer) {
  const std::lock_guard lock(mutex_);
  script_[path].push_back(std::move(answer));
}

std::vector<ScriptedRequest> ScriptedServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

ScriptedAnswer ScriptedServer::next_answer(const ScriptedRequest& request) {
  const std::lock_guard lock(mutex_);
  requests_.push_back(request);
  const auto found = script_.find(request.path.substr(0, request.path.find('?')));
  if (found == script_.end()) return {.status = 404, .body = R"({"detail":"Not Found"})"};
  const ScriptedAnswer answer = found->second.front();
  if (found->second.size() > 1) found->second.pop_front();
  return answer;
}

}  // namespace ckpt
