#include <gtest/gtest.h>

#include <random>

#include "transport/descriptor.h"
#include "transport/ucx/message.h"

namespace ckpt {
namespace {

TEST(Descriptor, SurvivesTheWay) {
  const Descriptor descriptor{"ucx",
                              "0123456789abcdef",
                              "rank 3 on host b",
                              std::vector<std::byte>(300, std::byte{9}),
                              {{1, 5, 0}, {4, 1ull << 40, 77}}};
  const auto decoded = decode_descriptor(encode_descriptor(descriptor), "ucx");
  ASSERT_TRUE(decoded.is_ok());
  EXPECT_EQ(*decoded, descriptor);
}

TEST(Descriptor, NoDamageIsTrusted) {
  const auto bytes = encode_descriptor(
      {"ucx", "a", "rank 3", std::vector<std::byte>(79, std::byte{7}), {{1, 5, 0}}});
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    auto damaged = bytes;
    damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    // Must not read outside, asan looks on; and no byte is let pass that was not written.
    EXPECT_TRUE(damaged == bytes || !decode_descriptor(damaged, "ucx").is_ok());
  }
}

TEST(Message, EveryKindSurvivesTheWay) {
  const auto there = [](ucx::Message message) {
    auto decoded = ucx::decode_message(ucx::encode_message(message));
    EXPECT_TRUE(decoded.is_ok());
    EXPECT_EQ(decoded->connection, message.connection);
    EXPECT_EQ(decoded->sequence, message.sequence);
    EXPECT_EQ(decoded->body.index(), message.body.index());
    return std::move(decoded).value();
  };
  const auto hello = there({5, 0, ucx::Hello{3, "i", "l", {std::byte{1}}, "o", 11}});
  EXPECT_EQ(std::get<ucx::Hello>(hello.body).address.size(), 1u);
  EXPECT_EQ(std::get<ucx::Hello>(hello.body).address_seal, 11u);
  const auto request = there({5, 1, ucx::Request{2, 3, {{1, 2, 3}, {4, 5, 6}}}});
  EXPECT_EQ(std::get<ucx::Request>(request.body).spans[1], (ucx::Request::Span{4, 5, 6}));
  const auto signal = there({5, 2, ucx::Signal{{std::byte{7}, std::byte{8}}}});
  EXPECT_EQ(std::get<ucx::Signal>(signal.body).message.size(), 2u);
  const auto refusal = there({5, 0, ucx::Refusal{2, StatusCode::kNotFound, "gone"}});
  EXPECT_EQ(std::get<ucx::Refusal>(refusal.body).code, StatusCode::kNotFound);
  EXPECT_EQ(std::get<ucx::Refusal>(refusal.body).text, "gone");
  EXPECT_EQ(std::get<ucx::Served>(there({5, 0, ucx::Served{2, 3}}).body).request, 3u);
  there({5, 3, ucx::Bye{}});
}

TEST(Message, NoDamageIsTrusted) {
  const auto bytes = ucx::encode_message({5, 1, ucx::Request{2, 3, {{1, 2, 3}, {4, 5, 6}}}});
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    auto damaged = bytes;
    damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    (void)ucx::decode_message(damaged);
  }
}

}  // namespace
}  // namespace ckpt
