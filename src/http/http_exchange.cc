#include "http/http_exchange.h"

#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/strings.h"

namespace ckpt {
namespace {

/// The library's view of a connection. Its own would wait with select(2), for as long as single
/// bytes come.
class CallStream : public httplib::Stream {
 public:
  explicit CallStream(const BegunCall& call) : call_(call) {}

  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }

  ssize_t read(char* out, std::size_t size) override {
    if (used_ < call_.head.size()) {
      const std::size_t count = std::min(size, call_.head.size() - used_);
      std::memcpy(out, call_.head.data() + used_, count);
      used_ += count;
      return static_cast<ssize_t>(count);
    }
    if (call_.cut) return 0;
    for (;;) {
      const ssize_t count = ::recv(call_.fd, out, size, MSG_DONTWAIT);
      if (count >= 0) return count;
      if (!wait_after_error(POLLIN, body_)) return -1;
    }
  }

  ssize_t write(const char* data, std::size_t size) override {
    const Deadline whole = Deadline::after(HttpExchange::kBodyTime);
    std::size_t done = 0;
    while (done < size) {
      const ssize_t count = ::send(call_.fd, data + done, size - done, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count >= 0) {
        done += static_cast<std::size_t>(count);
      } else if (!wait_after_error(POLLOUT, whole)) {
        return -1;
      }
    }
    return static_cast<ssize_t>(size);
  }

  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  // It only asks whether select(2) could take it.
  socket_t socket() const override { return 0; }

 private:
  bool wait_after_error(short events, Deadline whole) const {
    if (errno == EINTR) return true;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    const Deadline deadline = Deadline::after(HttpExchange::kSilence).earlier(whole);
    // An answer is written out at the stop, too.
    pollfd waits[] = {{call_.fd, events, 0}, {events == POLLIN ? call_.stop_fd : -1, POLLIN, 0}};
    const int ready = ::poll(waits, 2, deadline.poll_ms());
    return (ready > 0 && waits[1].revents == 0) || (ready < 0 && errno == EINTR);
  }

  const BegunCall& call_;
  std::size_t used_ = 0;
  const Deadline body_ = Deadline::after(HttpExchange::kBodyTime);
};

/// Takes as long for a wrong text as for the right one.
bool same_secret(std::string_view given, std::string_view wanted) {
  unsigned char difference = given.size() == wanted.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ wanted[i % wanted.size()]);
  }
  return difference == 0;
}

void put(const ServerAnswer& answer, httplib::Response& out) {
  out.status = answer.status;
  // Without a body there is no type: a client must not try to read one.
  if (!answer.body.empty()) out.set_content(answer.body, answer.content_type);
}

bool has_body(const httplib::Request& in) {
  return in.has_header("Content-Length") || in.has_header("Transfer-Encoding");
}

const char* text_of_status(int status) {
  switch (status) {
    case 400:
      return "this is no HTTP request that is understood here";
    case 404:
      return "no such call";
    case 413:
      return "the body is too long";
    case 414:
      return "the address is too long";
    default:
      return "the request is refused";
  }
}

void refuse(int status, const httplib::Request& in, httplib::Response& out) {
  put(error_answer(status, concat(text_of_status(status), ": ", in.method, " ", quoted(in.path))),
      out);
}

}  // namespace

class HttpExchange::Impl : private httplib::Server {
 public:
  Impl(const HttpServerOptions& options, HttpHandler handler)
      : max_body_(options.max_body),
        bearer_token_(options.bearer_token),
        open_path_(options.open_path),
        handler_(std::move(handler)) {
    set_up();
  }

  void serve(const BegunCall& call) {
    CallStream stream(call);
    bool closed = false;
    // A body is what its call says that it is: the library would parse a form, and limit it, and
    // that is what curl calls everything.
    process_request(stream, /*close_connection=*/true, closed,
                    [](httplib::Request& in) { in.headers.erase("Content-Type"); });
  }

 private:
  void set_up() {
    set_exception_handler(
        [](const httplib::Request& in, httplib::Response& out, std::exception_ptr) {
          log_error("http: internal error in ", in.method, " ", quoted(in.path));
          put(error_answer(500, "internal error"), out);
        });
    set_error_handler([](const httplib::Request& in, httplib::Response& out) {
      if (out.body.empty()) refuse(out.status, in, out);
    });
    set_pre_routing_handler([this](const httplib::Request& in, httplib::Response& out) {
      return before_body(in, out) ? HandlerResponse::Unhandled : HandlerResponse::Handled;
    });
    Get(".*", [this](const httplib::Request& in, httplib::Response& out) { answer(in, {}, out); });
    const auto with_body = [this](const httplib::Request& in, httplib::Response& out,
                                  const httplib::ContentReader& reader) {
      read_and_answer(in, out, reader);
    };
    Post(".*", with_body);
    Put(".*", with_body);
    Patch(".*", with_body);
    Delete(".*", with_body);
  }

  /// True when the body is to be read. The library would wait for the body of a POST that has none
  /// until the connection ends.
  bool before_body(const httplib::Request& in, httplib::Response& out) {
    if (!allowed(in)) {
      out.set_header("WWW-Authenticate", "Bearer");
      put(error_answer(401, "this call needs the service's token (Authorization: Bearer TOKEN)"),
          out);
      return false;
    }
    if (!has_body(in)) {
      answer(in, {}, out);
      return false;
    }
    if (!in.has_header("Content-Length")) return true;
    const auto length = parse_int(in.get_header_value("Content-Length"));
    const bool good = length && *length >= 0;
    if (good && static_cast<std::size_t>(*length) <= max_body_) return true;
    refuse(good ? 413 : 400, in, out);
    return false;
  }

  bool allowed(const httplib::Request& in) const {
    if (bearer_token_.empty()) return true;
    if (in.method == "GET" && !open_path_.empty() && in.path == open_path_) return true;
    constexpr std::string_view kScheme = "Bearer ";
    const std::string given = in.get_header_value("Authorization");
    return given.starts_with(kScheme) &&
           same_secret(std::string_view(given).substr(kScheme.size()), bearer_token_);
  }

  /// A chunked body says its length nowhere.
  void read_and_answer(const httplib::Request& in, httplib::Response& out,
                       const httplib::ContentReader& reader) {
    std::string body;
    bool too_long = false;
    const bool whole = reader([&](const char* data, std::size_t bytes) {
      too_long = body.size() + bytes > max_body_;
      if (!too_long) body.append(data, bytes);
      return !too_long;
    });
    if (!whole) return refuse(too_long ? 413 : 400, in, out);
    answer(in, std::move(body), out);
  }

  void answer(const httplib::Request& in, std::string body, httplib::Response& out) {
    put(handler_({in.method, in.target.substr(0, in.target.find('?')), std::move(body)}), out);
  }

  const std::size_t max_body_;
  const std::string bearer_token_, open_path_;
  const HttpHandler handler_;
};

HttpExchange::HttpExchange(const HttpServerOptions& options, HttpHandler handler)
    : impl_(std::make_unique<Impl>(options, std::move(handler))) {}
HttpExchange::~HttpExchange() = default;
void HttpExchange::serve(const BegunCall& call) { impl_->serve(call); }

}  // namespace ckpt
