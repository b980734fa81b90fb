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
using testing::HasSubstr;

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
  const auto fd = connect_endpoint(server_->endpoint(), Deadline::after_seconds(5), never_);
  ASSERT_TRUE(fd.is_ok());
  const std::string request = "POST /x HTTP/1.1\r\nHost: localhost\r\n\r\n";
  ASSERT_EQ(::send(fd->get(), request.data(), request.size(), 0),
            static_cast<ssize_t>(request.size()));
  const auto answered = wait_readable(fd->get(), Deadline::after_seconds(4));
  ASSERT_TRUE(answered.is_ok() && *answered);
  char line[13] = {};
  ASSERT_EQ(::recv(fd->get(), line, 12, MSG_WAITALL), 12);
  EXPECT_STREQ(line, "HTTP/1.1 200");
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
