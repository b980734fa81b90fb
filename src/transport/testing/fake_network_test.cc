#include "transport/testing/fake_network.h"

#include <gtest/gtest.h>

#include <atomic>

namespace ckpt {
namespace {

Deadline soon() { return Deadline::after_seconds(20); }

struct Pair {
  testing::FakeNetwork network;
  std::vector<std::byte> source = std::vector<std::byte>(1000, std::byte{3});
  std::vector<std::byte> destination = std::vector<std::byte>(1000);
  std::shared_ptr<CallbackTransport> owner = network.make_transport("owner");
  std::shared_ptr<CallbackTransport> reader = network.make_transport("reader");
  std::unique_ptr<MemoryRegion> region =
      owner->register_memory(source.data(), source.size()).value();
  std::unique_ptr<Peer> peer = reader->connect(owner->descriptor().value(), {}, soon()).value();

  Status read(Deadline deadline) {
    const ReadRange range{region->id(), 0, destination.data(), destination.size()};
    return reader->read(*peer, {&range, 1}, deadline)->wait(deadline);
  }
};

TEST(FakeNetwork, CorruptsOneReadByOneBit) {
  Pair pair;
  pair.network.corrupt_next_read(*pair.owner);
  ASSERT_TRUE(pair.read(soon()).is_ok());
  EXPECT_NE(pair.destination, pair.source);
  ASSERT_TRUE(pair.read(soon()).is_ok());
  EXPECT_EQ(pair.destination, pair.source);
}

TEST(FakeNetwork, DelaysBeyondTheDeadline) {
  Pair pair;
  pair.network.delay(*pair.owner, std::chrono::seconds(60));
  EXPECT_EQ(pair.read(Deadline::after_seconds(0.05)).code(), StatusCode::kDeadlineExceeded);
}

TEST(FakeNetwork, DropsSignals) {
  Pair pair;
  std::atomic<int> arrived{0};
  pair.owner->set_signal_handler([&](const Transport::Sender&, std::span<const std::byte> message) {
    arrived.fetch_add(static_cast<int>(message.size()));
  });
  pair.network.drop_signals(*pair.owner, 1);
  ASSERT_TRUE(pair.reader->signal(*pair.peer, std::vector<std::byte>(1)).is_ok());
  ASSERT_TRUE(pair.reader->signal(*pair.peer, std::vector<std::byte>(10)).is_ok());
  ASSERT_TRUE(pair.read(soon()).is_ok());  // behind both
  EXPECT_EQ(arrived.load(), 10);
  pair.owner->set_signal_handler({});
}

}  // namespace
}  // namespace ckpt
