#include "http/endpoint.h"

#include <gtest/gtest.h>

namespace ckpt {
namespace {

TEST(Endpoint, AcceptsUrlsAddressesAndSockets) {
  const struct {
    const char *text, *canonical;
  } cases[] = {
      {"http://localhost:19730", "http://localhost:19730"},
      {"HTTP://LocalHost:1", "http://LocalHost:1"},
      {"127.0.0.1:8000", "http://127.0.0.1:8000"},
      {"http://engine", "http://engine:80"},
      {"http://[::1]:8000", "http://[::1]:8000"},
      {"[fe80::1]:9", "http://[fe80::1]:9"},
      {"http://host:1/v1/engine/", "http://host:1/v1/engine"},
      {"unix:/run/engine.sock", "unix:/run/engine.sock"},
  };
  for (const auto& each : cases) {
    const auto endpoint = parse_endpoint(each.text);
    ASSERT_TRUE(endpoint.is_ok()) << each.text << ": " << endpoint.status().message();
    EXPECT_EQ(endpoint->to_string(), each.canonical);
  }
}

TEST(Endpoint, RefusesWhatItCannotServe) {
  for (const char* text :
       {"", "https://host:1", "HTTPS://host:1", "ftp://host:1", "host", "http://", "http://:80",
        "host:0", "host:65536", "host:80x", "host:-1", "::1:80", "http://[::1:80", "http://[::1]80",
        "http://u:p@host:1", "http://host:1/?a=b", "host:1 ", "unix:"}) {
    const auto endpoint = parse_endpoint(text);
    EXPECT_FALSE(endpoint.is_ok()) << text;
    EXPECT_EQ(endpoint.status().code(), StatusCode::kInvalidArgument) << text;
  }
}

TEST(Endpoint, SocketPathsThatDoNotFitAreRefused) {
  EXPECT_TRUE(unix_endpoint(std::string(107, 'a')).is_ok());
  EXPECT_FALSE(unix_endpoint(std::string(108, 'a')).is_ok());
}

TEST(Endpoint, HostHeaderKeepsBrackets) {
  EXPECT_EQ(parse_endpoint("http://[::1]:8000")->host_header(), "[::1]:8000");
  EXPECT_EQ(parse_endpoint("http://a:8000")->host_header(), "a:8000");
  EXPECT_EQ(parse_endpoint("unix:/a")->host_header(), "localhost");
}

TEST(IsLoopback, ByItsWriting) {
  for (const char* host : {"localhost", "::1", "127.0.0.1", "127.9.9.9"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
  }
  for (const char* host : {"", "0.0.0.0", "10.0.0.1", "127.0.0.1.example.org", "engine"}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
}

}  // namespace
}  // namespace ckpt
