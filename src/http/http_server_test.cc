#include "http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/strings.h"
#include "http/connect.h"
#include "http/http_client.h"

namespace ckpt {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

/// Answers with what it was asked.
ServerAnswer echo(const ServerRequest& request) {
  if (request.path == "/throw") throw std::runtime_error("a secret of the inside");
  return {200,
          json{{"method", request.method}, {"path", request.path}, {"body", request.body}}.dump()};
}

class HttpServerTest : public testing::Test {
 protected:
  explicit HttpServerTest(HttpServerOptions options = {})
      : server_(*HttpServer::start(std::move(options), echo)) {}

  HttpResponse ask(const std::string& method, const std::string& path, const std::string& body = {},
                   const std::string& token = {}) {
    auto response = http_request(server_->endpoint(), {method, path, body, token},
                                 Deadline::after_seconds(20), never_);
    EXPECT_TRUE(response.is_ok()) << response.status().message();
    return response ? *response : HttpResponse();
  }

  UniqueFd connect() {
    auto fd = connect_endpoint(server_->endpoint(), Deadline::after_seconds(20), never_);
    EXPECT_TRUE(fd.is_ok()) << fd.status().message();
    return fd ? std::move(*fd) : UniqueFd();
  }

  /// A connection on which `text` was said.
  UniqueFd say(const std::string& text) {
    UniqueFd fd = connect();
    EXPECT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    return fd;
  }

  /// All that the server answers until it closes the connection.
  static std::string answer_on(const UniqueFd& fd) {
    std::string answer;
    char buffer[4096];
    for (;;) {
      const auto readable = wait_readable(fd.get(), Deadline::after_seconds(20));
      if (!readable || !*readable) return "no end of: " + answer;
      const ssize_t count = ::recv(fd.get(), buffer, sizeof(buffer), 0);
      if (count <= 0) return answer;
      answer.append(buffer, static_cast<std::size_t>(count));
    }
  }

  std::unique_ptr<HttpServer> server_;
  AbortSignal never_;
};

TEST_F(HttpServerTest, PathsArriveAsTheyWereSent) {
  const auto response = ask("POST", "/a%2Fb%20c/d?x=1", "{}");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(json::parse(response.body),
            (json{{"method", "POST"}, {"path", "/a%2Fb%20c/d"}, {"body", "{}"}}));
  EXPECT_EQ(json::parse(ask("DELETE", "/x").body)["method"], "DELETE");
}

TEST_F(HttpServerTest, APostWithoutABodyIsAnsweredAtOnce) {
  // What `curl -X POST` sends: neither a length nor a body, and the connection stays open.
  EXPECT_THAT(answer_on(say("POST /x HTTP/1.1\r\nHost: localhost\r\n\r\n")),
              StartsWith("HTTP/1.1 200"));
}

// curl -d calls everything a form.
TEST_F(HttpServerTest, ABodyIsReadWhateverItsTypeIs) {
  const std::string body(20'000, 'x');
  for (const char* type : {"application/x-www-form-urlencoded", "text/plain",
                           "multipart/form-data; boundary=b", "multipart/form-data"}) {
    const std::string answer =
        answer_on(say(concat("POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Type: ", type,
                             "\r\nContent-Length: ", body.size(), "\r\n\r\n", body)));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200")) << type;
    EXPECT_THAT(answer, HasSubstr(body)) << type;
  }
}

TEST_F(HttpServerTest, ConnectionsThatSayNothingKeepNobodyWaiting) {
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 100; ++i) idle.push_back(i % 2 == 0 ? connect() : say("POST /x HT"));
  EXPECT_EQ(ask("POST", "/x", "{}").status, 200);
  server_->stop();
  for (const UniqueFd& each : idle) EXPECT_EQ(answer_on(each), "");
}

TEST_F(HttpServerTest, WhatTheHandlerThrowsStaysInside) {
  const auto response = ask("GET", "/throw");
  EXPECT_EQ(response.status, 500);
  EXPECT_THAT(response.body, testing::Not(HasSubstr("secret")));
  EXPECT_EQ(json::parse(response.body)["error"]["code"], 500);
}

TEST_F(HttpServerTest, RefusalsOfTheLibraryAreJsonToo) {
  const auto response = ask("BREW", "/x", "{}");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(json::parse(response.body)["error"]["code"], response.status);
}

TEST_F(HttpServerTest, WhoAsksWhetherToGoOnIsTold) {
  // As curl does before a long body.
  const std::string head = "POST /x HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
  EXPECT_THAT(answer_on(say(head + "{}")),
              AllOf(StartsWith("HTTP/1.1 100"), HasSubstr("HTTP/1.1 200")));
}

class PatientServerTest : public HttpServerTest {
 protected:
  PatientServerTest() : HttpServerTest(HttpServerOptions{.head_seconds = 1000}) {}
};

TEST_F(PatientServerTest, OfTooManyConnectionsTheFirstMakesRoom) {
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 270; ++i) idle.push_back(connect());
  EXPECT_EQ(answer_on(idle.front()), "");
  EXPECT_EQ(ask("POST", "/x", "{}").status, 200);
}

class LimitedServerTest : public HttpServerTest {
 protected:
  LimitedServerTest() : HttpServerTest(HttpServerOptions{.max_body = 1000}) {}
};

TEST_F(LimitedServerTest, ABodyBeyondTheLimitIsRefused) {
  EXPECT_EQ(ask("POST", "/x", std::string(1000, 'x')).status, 200);
  const auto response = ask("POST", "/x", std::string(1001, 'x'));
  EXPECT_EQ(response.status, 413);
  EXPECT_THAT(json::parse(response.body)["error"]["message"].get<std::string>(),
              HasSubstr("too long"));
}

TEST_F(LimitedServerTest, SoIsOneThatSaysItsLengthNowhere) {
  const auto chunked = [&](std::size_t bytes) {
    const std::string head = "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n";
    return answer_on(say(concat(head, std::string(1000, 'x'), "\r\n",
                                bytes > 1000 ? "1\r\nx\r\n" : "", "0\r\n\r\n")));
  };
  EXPECT_THAT(chunked(1000), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(chunked(1001), StartsWith("HTTP/1.1 413"));
}

TEST_F(LimitedServerTest, AHeadWithoutEndIsRefused) {
  EXPECT_THAT(answer_on(say("GET /x HTTP/1.1\r\nA: " + std::string(70'000, 'x'))),
              StartsWith("HTTP/1.1 400"));
}

class ImpatientServerTest : public HttpServerTest {
 protected:
  ImpatientServerTest() : HttpServerTest(HttpServerOptions{.head_seconds = 0.2}) {}
};

TEST_F(ImpatientServerTest, AHeadThatTricklesEndsAtTheDeadlineOfTheWhole) {
  const UniqueFd fd = say("GET /");
  const Deadline patience = Deadline::after_seconds(20);
  for (;;) {
    ASSERT_FALSE(patience.expired());
    const auto readable = wait_readable(fd.get(), Deadline::after_seconds(0.01));
    ASSERT_TRUE(readable.is_ok());
    if (*readable) break;
    (void)::send(fd.get(), "x", 1, MSG_NOSIGNAL);
  }
  char byte;
  EXPECT_LE(::recv(fd.get(), &byte, 1, 0), 0) << "closed, and nothing was said";
}

class BusyServerTest : public HttpServerTest {
 protected:
  BusyServerTest() : HttpServerTest(HttpServerOptions{.threads = 2, .quick_paths = {"/healthz"}}) {}
};

TEST_F(BusyServerTest, QuickCallsAreAnsweredWhileBodiesDoNotCome) {
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 20; ++i) {
    slow.push_back(say("POST /x HTTP/1.1\r\nContent-Length: 10\r\n\r\nx"));
  }
  for (int i = 0; i < 10; ++i) EXPECT_EQ(ask("GET", "/healthz?x=1").status, 200);
  server_->stop();
}

class GuardedServerTest : public HttpServerTest {
 protected:
  GuardedServerTest()
      : HttpServerTest(HttpServerOptions{.bearer_token = "open sesame", .open_path = "/healthz"}) {}
};

TEST_F(GuardedServerTest, OnlyTheTokenOpens) {
  EXPECT_EQ(ask("GET", "/x", "", "open sesame").status, 200);
  for (const char* wrong : {"", "open", "open sesam", "open sesame2", "open sesamf"}) {
    const auto response = ask("POST", "/x", "{}", wrong);
    EXPECT_EQ(response.status, 401) << wrong;
    EXPECT_EQ(json::parse(response.body)["error"]["code"], 401);
  }
  EXPECT_EQ(ask("GET", "/healthz").status, 200);
  EXPECT_EQ(ask("POST", "/healthz", "{}").status, 401);
}

}  // namespace
}  // namespace ckpt
