#include "control/messages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace ckpt::control {
namespace {

template <typename T>
T again(const T& message) {
  auto decoded = decode(encode(message));
  EXPECT_TRUE(decoded) << decoded.status().to_string();
  const T* same = decoded ? std::get_if<T>(&*decoded) : nullptr;
  EXPECT_NE(same, nullptr);
  return same != nullptr ? *same : T{};
}

std::vector<Message> samples() {
  return {Join{1, "job", "secret", 3, 8, "host", "node", 4711, 1000},
          Refused{invalid_argument("no")},
          Welcome{"session", 1000, 5000},
          Attach{"session"},
          Ready{},
          Pulse{},
          Leave{},
          Left{},
          Lost{3, "host", {{7, "ipc://@a"}, {8, "ipc://@b"}}, peer_lost("gone").on_rank(3)},
          Contribute{1, Call::kVote, "tag", {2, 0, 1}, 7, data_loss("differs")},
          Withdraw{2, deadline_exceeded("late")},
          Put{3, "key"},
          Get{4, "key"},
          Contains{5, "key"},
          Erase{6, "key"},
          Outcome{7, aborted("over"), 9},
          EndUpdate{7},
          Abort{7, io_error("disk").on_rank(0)},
          Relay{3, 7},
          PublishChannel{7, "ipc://@a"},
          WithdrawChannel{7}};
}

TEST(Messages, EveryKindComesBackAsItself) {
  const std::vector<Message> all = samples();
  ASSERT_EQ(all.size(), std::variant_size_v<Message>);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i].index(), i) << "one sample of each kind, in order";
    const auto decoded = decode(encode(all[i]));
    ASSERT_TRUE(decoded) << decoded.status().to_string();
    EXPECT_EQ(decoded->index(), i);
    EXPECT_EQ(encode(*decoded), encode(all[i]));
  }
}

TEST(Messages, FieldsSurvive) {
  const auto lost = again(Lost{3, "host", {{7, "ipc://@a"}}, peer_lost("gone").on_rank(3)});
  EXPECT_EQ(lost.cause.to_string(), "rank 3: peer lost: gone");
  ASSERT_EQ(lost.channels.size(), 1U);
  EXPECT_EQ(lost.channels[0].epoch, 7U);
  EXPECT_EQ(lost.channels[0].address, "ipc://@a");
  const auto call = again(Contribute{1, Call::kVote, "tag", {2, 0, 1}, 7, Status::ok()});
  EXPECT_EQ(call.ranks, (std::vector<int>{2, 0, 1}));
  EXPECT_TRUE(call.vote.is_ok());
  EXPECT_FALSE(again(Abort{7, aborted("x")}).cause.rank());
}

TEST(Messages, ACodeOfANewerVersionKeepsItsText) {
  const auto refused = again(Refused{Status(static_cast<StatusCode>(999), "from the future")});
  EXPECT_EQ(refused.cause.code(), StatusCode::kInternal);
  EXPECT_EQ(refused.cause.message(), "from the future");
}

TEST(Messages, DamagedFramesAreRefusedOrStillMessages) {
  std::mt19937_64 random(7);
  for (const Message& message : samples()) {
    const auto frame = encode(message);
    for (std::size_t cut = 0; cut < frame.size(); ++cut) {
      (void)decode(std::span(frame).first(cut));
    }
    for (int i = 0; i < 2000; ++i) {
      auto damaged = frame;
      for (int flips = 1 + int(random() % 4); flips > 0; --flips) {
        damaged[random() % damaged.size()] ^= std::byte(1U << (random() % 8));
      }
      const auto decoded = decode(damaged);
      if (!decoded) {
        EXPECT_EQ(decoded.status().code(), StatusCode::kProtocol);
        continue;
      }
      EXPECT_TRUE(decode(encode(*decoded))) << "what is accepted can be sent on";
    }
  }
}

TEST(Messages, RandomBytesAreRefused) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> frame(random() % 200);
    for (std::byte& byte : frame) byte = std::byte(random());
    if (i % 2 == 0 && frame.size() >= 8) std::memcpy(&frame[4], "CKCM", 4);
    (void)decode(frame);
  }
  EXPECT_EQ(decode({}).status().code(), StatusCode::kProtocol);
  EXPECT_EQ(decode(std::vector<std::byte>(64 << 10)).status().code(), StatusCode::kProtocol);
}

}  // namespace
}  // namespace ckpt::control
