#include "collective/progress_signal.h"

#include <gtest/gtest.h>

#include <vector>

#include "transport/testing/fake_network.h"

namespace ckpt {
namespace {

constexpr ProgressSignal kExample{ProgressSignal::Kind::kForwarded, 0x0102030405060708, 9, 10,
                                  0x1112131415161718};

void expect_equal(const ProgressSignal& a, const ProgressSignal& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.pass, b.pass);
  EXPECT_EQ(a.from, b.from);
  EXPECT_EQ(a.value, b.value);
}

TEST(ProgressSignal, ComesBackEqual) {
  for (const auto kind : {ProgressSignal::Kind::kReceived, ProgressSignal::Kind::kForwarded,
                          ProgressSignal::Kind::kFilled, ProgressSignal::Kind::kAcknowledged}) {
    for (const std::uint64_t value : {std::uint64_t{0}, ~std::uint64_t{0}}) {
      const ProgressSignal signal{kind, value, 0xFFFFFFFF, 0x7FFFFFFF, value};
      const auto decoded = decode_progress_signal(encode_progress_signal(signal));
      ASSERT_TRUE(decoded.has_value());
      expect_equal(*decoded, signal);
    }
  }
}

TEST(ProgressSignal, HasTheseBytes) {
  const unsigned char expected[32] = {'C',  'K',  'S',  '1',  2,    0,    0,    0,  //
                                      8,    7,    6,    5,    4,    3,    2,    1,  //
                                      9,    0,    0,    0,    10,   0,    0,    0,  //
                                      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11};
  const ProgressSignalBytes bytes = encode_progress_signal(kExample);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(bytes[i], static_cast<std::byte>(expected[i])) << "byte " << i;
  }
}

TEST(ProgressSignal, DamagedBytesAreRefused) {
  const ProgressSignalBytes good = encode_progress_signal(kExample);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(decode_progress_signal(std::span(good).first(size)).has_value()) << size;
  }
  std::vector<std::byte> longer(good.begin(), good.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_progress_signal(longer).has_value());
  for (std::size_t bit = 0; bit < 8 * 8; ++bit) {  // of magic and kind
    ProgressSignalBytes damaged = good;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const auto decoded = decode_progress_signal(damaged);
    EXPECT_FALSE(decoded.has_value()) << "bit " << bit;
  }
}

/// Two ranks, of which the first one listens.
struct Pair {
  testing::FakeNetwork network;
  std::shared_ptr<CallbackTransport> listener = network.make_transport("rank 0");
  std::shared_ptr<CallbackTransport> speaker = network.make_transport("rank 1");
  std::unique_ptr<ProgressSignals> signals = std::make_unique<ProgressSignals>(*listener);

  void say(std::uint64_t epoch, std::uint32_t pass, std::uint64_t value) {
    say(encode_progress_signal({ProgressSignal::Kind::kReceived, epoch, pass, 1, value}));
  }
  void say(std::span<const std::byte> bytes) {
    listener->deliver_signal("rank 1", speaker->instance(), bytes);
  }
};

TEST(ProgressSignals, GoToThePassThatTheyBelongTo) {
  Pair pair;
  std::vector<std::uint64_t> first, second, later;
  pair.signals->open(1, 1, [&](const ProgressSignal& signal) { first.push_back(signal.value); });
  pair.signals->open(1, 2, [&](const ProgressSignal& signal) { second.push_back(signal.value); });
  pair.signals->open(2, 1, [&](const ProgressSignal& signal) { later.push_back(signal.value); });
  pair.say(1, 1, 10);
  pair.say(1, 2, 20);
  pair.say(2, 1, 30);
  pair.say(1, 1, 11);
  pair.say(3, 1, 40);
  EXPECT_EQ(first, (std::vector<std::uint64_t>{10, 11}));
  EXPECT_EQ(second, std::vector<std::uint64_t>{20});
  EXPECT_EQ(later, std::vector<std::uint64_t>{30});
}

TEST(ProgressSignals, AreDroppedBeforeAndAfterTheirPassAndWhenDamaged) {
  Pair pair;
  std::vector<std::uint64_t> heard;
  pair.say(1, 1, 1);
  pair.signals->open(1, 1, [&](const ProgressSignal& signal) { heard.push_back(signal.value); });
  pair.say(std::vector<std::byte>(32, std::byte{0xFF}));
  pair.say(std::vector<std::byte>());
  pair.say(1, 1, 2);
  pair.signals->close(1, 1);
  pair.say(1, 1, 3);
  pair.signals->close(1, 1);  // again: nothing
  EXPECT_EQ(heard, std::vector<std::uint64_t>{2});
  pair.signals.reset();
  pair.say(1, 1, 4);
  EXPECT_EQ(heard.size(), 1u);
}

}  // namespace
}  // namespace ckpt
