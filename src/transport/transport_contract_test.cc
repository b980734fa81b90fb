// What every transport promises (transport.h), tried on all of them, with owners in this process
// and in processes of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <ctime>
#include <thread>

#include "base/strings.h"
#include "transport/descriptor.h"
#include "transport/read_plan.h"
#include "transport/testing/fake_network.h"
#include "transport/testing/owner.h"
#include "transport/ucx/ucx_transport.h"

namespace ckpt {
namespace {

using testing::FakeNetwork;
using testing::first_mismatch;
using ::testing::HasSubstr;
using testing::OwnerUnderTest;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::byte kUntouched{0xa5};

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 10000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

Deadline soon() { return Deadline::after_seconds(30); }

/// Whose large reads come by rendezvous, as by RDMA: over TCP, too, where nothing else would do so.
constexpr std::string_view kByRendezvous = "ucx_rendezvous";

std::shared_ptr<Transport> make_ucx(std::string label, std::string_view backend = "ucx") {
  UcxOptions options;
  options.label = std::move(label);
  if (backend == kByRendezvous) options.read_grain = kReadGrain;
  auto transport = make_ucx_transport(options);
  if (!transport.is_ok()) {
    ADD_FAILURE() << transport.status().to_string();
    std::abort();
  }
  return std::move(transport).value();
}

struct Variant {
  std::string backend;  // callback, ucx or ucx_rendezvous
  bool processes;
};

std::string variant_name(const ::testing::TestParamInfo<Variant>& info) {
  return concat(info.param.backend, info.param.processes ? "_processes" : "_threads");
}

class TransportContract : public ::testing::TestWithParam<Variant> {
 protected:
  const Variant& variant() const { return GetParam(); }
  bool is_callback() const { return variant().backend == "callback"; }
  bool can_damage() const { return is_callback() || variant().processes; }

  std::shared_ptr<Transport> make_transport(std::string label) {
    if (is_callback()) return network_.make_transport(std::move(label));
    return make_ucx(std::move(label), variant().backend);
  }

  std::unique_ptr<OwnerUnderTest> make_owner() {
    if (variant().processes) return testing::start_owner_process(variant().backend);
    auto transport = make_transport("owner");
    testing::Damage damage;
    if (is_callback()) {
      damage = {[this, transport] { network_.die(*transport); },
                [this, transport] { network_.stop(*transport); },
                [this, transport] { network_.resume(*transport); }};
    }
    return testing::make_local_owner(transport, std::move(damage));
  }

  std::unique_ptr<Peer> connect(OwnerUnderTest& owner, ConnectOptions options = {}) {
    return connect(owner.descriptor(), std::move(options));
  }
  std::unique_ptr<Peer> connect(const std::vector<std::byte>& descriptor,
                                ConnectOptions options = {}) {
    auto peer = reader_->connect(descriptor, std::move(options), soon());
    EXPECT_TRUE(peer.is_ok()) << peer.status().to_string();
    return peer.is_ok() ? std::move(peer).value() : nullptr;
  }

  Status read_whole(Peer& peer, std::uint64_t region, std::vector<std::byte>& destination,
                    std::uint64_t offset = 0, Deadline deadline = soon()) {
    const ReadRange range{region, offset, destination.data(), destination.size()};
    return reader_->read(peer, {&range, 1}, deadline)->wait(deadline);
  }

  FakeNetwork network_;
  std::shared_ptr<Transport> reader_ = make_transport("reader");
};

TEST_P(TransportContract, ReadsEverySize) {
  const auto owner = make_owner();
  const std::uint64_t total = 64 * kMiB;
  owner->add_region(total, 7);
  const auto peer = connect(*owner);
  ASSERT_EQ(peer->regions().size(), 1u);
  EXPECT_EQ(peer->regions()[0], (RemoteRegion{1, total}));
  EXPECT_EQ(peer->label(), "owner");
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{12345},
                                    16 * 1024 + std::uint64_t{1}, kMiB, 5 * kMiB + 3, total}) {
    const std::uint64_t offset = bytes == total ? 0 : 777;
    std::vector<std::byte> destination(bytes + 1, kUntouched);
    const ReadRange range{1, offset, destination.data(), bytes};
    const auto read = reader_->read(*peer, {&range, 1}, soon());
    ASSERT_TRUE(read->wait(soon()).is_ok()) << bytes << ": " << read->wait(soon()).to_string();
    EXPECT_TRUE(read->done());
    EXPECT_TRUE(read->destination_released());
    EXPECT_EQ(read->bytes(), bytes);
    EXPECT_EQ(read->bytes_done(), bytes);
    EXPECT_EQ(first_mismatch({destination.data(), bytes}, 7, offset), -1) << bytes;
    EXPECT_EQ(destination.back(), kUntouched);
  }
  EXPECT_TRUE(eventually([&] { return reader_->statistics().reads_done == 7; }));
  EXPECT_GE(reader_->statistics().bytes_read, total);
}

TEST_P(TransportContract, ReadsTenThousandTinyRangesOfSeveralRegions) {
  const auto owner = make_owner();
  owner->add_region(4 * kMiB, 1);
  owner->add_region(4 * kMiB, 2);
  const auto peer = connect(*owner);
  std::vector<std::byte> destination(10000 * 256, kUntouched);
  std::vector<ReadRange> ranges;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    // A few large ones among them, so that both ways of answering mix.
    ranges.push_back({1 + i % 2, i * 401, destination.data() + i * 256, i % 200});
  }
  std::vector<std::byte> large(3 * kMiB);
  ranges.insert(ranges.begin() + 5000, {2, 1234, large.data(), large.size()});
  std::atomic<int> calls{0};
  const auto read = reader_->read(*peer, ranges, soon(), [&](const Status& status) {
    EXPECT_TRUE(status.is_ok());
    calls.fetch_add(1);
  });
  ASSERT_TRUE(read->wait(soon()).is_ok()) << read->wait(soon()).to_string();
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const std::span<const std::byte> slot(destination.data() + i * 256, 256);
    ASSERT_EQ(first_mismatch(slot.first(i % 200), 1 + i % 2, i * 401), -1) << i;
    ASSERT_EQ(slot[i % 200], kUntouched) << i;
  }
  EXPECT_EQ(first_mismatch(large, 2, 1234), -1);
  EXPECT_TRUE(eventually([&] { return calls.load() == 1; }));
}

TEST_P(TransportContract, ServesManyReadersAtOnce) {
  const auto owner = make_owner();
  owner->add_region(8 * kMiB, 3);
  const auto descriptor = owner->descriptor();
  std::vector<std::thread> threads;
  for (int reader = 0; reader < 4; ++reader) {
    threads.emplace_back([&, reader] {
      const auto transport = make_transport(concat("reader ", reader));
      auto peer = transport->connect(descriptor, {}, soon());
      ASSERT_TRUE(peer.is_ok());
      std::vector<std::byte> destination(8 * kMiB);
      for (int round = 0; round < 3; ++round) {
        std::fill(destination.begin(), destination.end(), std::byte{0});
        const ReadRange range{1, 0, destination.data(), destination.size()};
        const Status status = transport->read(**peer, {&range, 1}, soon())->wait(soon());
        ASSERT_TRUE(status.is_ok()) << status.to_string();
        ASSERT_EQ(first_mismatch(destination, 3), -1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(TransportContract, RefusesWhatTheDescriptorDoesNotHold) {
  const auto owner = make_owner();
  owner->add_region(1000, 1);
  const auto peer = connect(*owner, {.label = "rank 3 on host b"});
  std::vector<std::byte> destination(2000, kUntouched);
  const std::vector<ReadRange> wrong = {
      {1, 0, destination.data(), 1001},  // one byte too much
      {1, 1000, destination.data(), 1},  // just behind the end
      {1, ~std::uint64_t{0}, destination.data(), 2},
      {2, 0, destination.data(), 1},  // no such region
      {1, 0, nullptr, 1},
  };
  for (const ReadRange& range : wrong) {
    const auto read = reader_->read(*peer, {&range, 1}, soon());
    EXPECT_TRUE(read->done());
    const Status status = read->wait(soon());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("rank 3 on host b"));
    EXPECT_TRUE(read->destination_released());
  }
  EXPECT_EQ(destination, std::vector<std::byte>(2000, kUntouched));
  destination.resize(1000);
  EXPECT_TRUE(read_whole(*peer, 1, destination).is_ok());
}

TEST_P(TransportContract, RefusesDamagedDescriptors) {
  const auto owner = make_owner();
  owner->add_region(10, 1);
  auto bytes = owner->descriptor();
  EXPECT_EQ(reader_->connect({}, {}, soon()).status().code(), StatusCode::kProtocol);
  const std::vector<std::byte> half(bytes.begin(), bytes.begin() + bytes.size() / 2);
  EXPECT_EQ(reader_->connect(half, {}, soon()).status().code(), StatusCode::kProtocol);
  auto other = decode_descriptor(bytes, reader_->name());
  ASSERT_TRUE(other.is_ok());
  other->kind = "pigeon";
  const Status status = reader_->connect(encode_descriptor(*other), {}, soon()).status();
  EXPECT_EQ(status.code(), StatusCode::kProtocol);
  EXPECT_THAT(status.message(), HasSubstr("pigeon"));
}

TEST_P(TransportContract, RefusesTheDescriptorOfAnotherInstance) {
  const auto owner = make_owner();
  owner->add_region(100 * 1024, 1);
  auto descriptor = decode_descriptor(owner->descriptor(), reader_->name());
  ASSERT_TRUE(descriptor.is_ok());
  descriptor->instance = "0123456789abcdef";
  const auto stale = connect(encode_descriptor(*descriptor), {.label = "rank 3"});
  std::vector<std::byte> destination(100 * 1024, kUntouched);
  const Status status = read_whole(*stale, 1, destination);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("restarted"));
  EXPECT_THAT(status.message(), HasSubstr("rank 3"));
  EXPECT_EQ(destination, std::vector<std::byte>(100 * 1024, kUntouched));
}

TEST_P(TransportContract, RefusesARegionThatWasClosed) {
  const auto owner = make_owner();
  owner->add_region(kMiB, 1);
  owner->add_region(kMiB, 2);
  const auto peer = connect(*owner);
  std::vector<std::byte> destination(kMiB, kUntouched);
  owner->close_region(1);
  for (const std::uint64_t bytes : {std::uint64_t{1}, kMiB}) {
    std::vector<std::byte> part(bytes, kUntouched);
    const Status status = read_whole(*peer, 1, part);
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.to_string();
    EXPECT_EQ(part, std::vector<std::byte>(bytes, kUntouched));
  }
  EXPECT_TRUE(read_whole(*peer, 2, destination).is_ok());
  EXPECT_EQ(first_mismatch(destination, 2), -1);
  EXPECT_EQ(connect(*owner)->regions().size(), 1u);
}

TEST_P(TransportContract, NeverReturnsBytesOfARegionThatClosesMeanwhile) {
  const auto owner = make_owner();
  int finished = 0;
  for (std::uint64_t round = 1; round <= 8; ++round) {
    owner->add_region(8 * kMiB, round);
    const auto peer = connect(*owner);
    std::vector<std::byte> destination(8 * kMiB, kUntouched);
    const ReadRange range{round, 0, destination.data(), destination.size()};
    const auto read = reader_->read(*peer, {&range, 1}, soon());
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    owner->close_region(round);
    const Status status = read->wait(soon());
    if (status.is_ok()) {
      ++finished;
      ASSERT_EQ(first_mismatch(destination, round), -1);
    } else {
      ASSERT_EQ(status.code(), StatusCode::kNotFound) << status.to_string();
      EXPECT_TRUE(peer->status().is_ok());
    }
  }
  RecordProperty("finished", finished);
}

TEST_P(TransportContract, OwnerThatIsKilledIsLostAndNamed) {
  if (!can_damage()) GTEST_SKIP() << "an owner in this process cannot be killed alone";
  const auto healthy = make_owner();
  healthy->add_region(8 * kMiB, 9);
  const auto healthy_peer = connect(*healthy);
  const auto owner = make_owner();
  owner->add_region(32 * kMiB, 1);
  std::atomic<int> lost{0};
  const auto peer = connect(
      *owner, {.label = "rank 3 on host b", .on_lost = [&](const Status&) { lost.fetch_add(1); }});
  std::vector<std::byte> destination(32 * kMiB);
  std::vector<std::byte> other(8 * kMiB);
  std::vector<std::byte> first(kMiB);
  ASSERT_TRUE(read_whole(*peer, 1, first).is_ok());
  owner->stop();  // so that the read is under way for certain
  const ReadRange range{1, 0, destination.data(), destination.size()};
  const auto read = reader_->read(*peer, {&range, 1}, soon());
  EXPECT_TRUE(read_whole(*healthy_peer, 1, other).is_ok());
  owner->kill();
  const Status status = read->wait(soon());
  EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("rank 3 on host b"));
  EXPECT_TRUE(eventually([&] { return read->destination_released(); }));
  EXPECT_TRUE(eventually([&] { return lost.load() == 1; }));
  EXPECT_EQ(peer->status().code(), StatusCode::kPeerLost);
  EXPECT_EQ(read_whole(*peer, 1, first).code(), StatusCode::kPeerLost);
  EXPECT_FALSE(reader_->signal(*peer, std::span(first).first(8)).is_ok());
  EXPECT_TRUE(read_whole(*healthy_peer, 1, other).is_ok());
  EXPECT_EQ(first_mismatch(other, 9), -1);
}

TEST_P(TransportContract, OwnerKilledWhileDataFlows) {
  if (!can_damage()) GTEST_SKIP() << "an owner in this process cannot be killed alone";
  const auto owner = make_owner();
  owner->add_region(64 * kMiB, 1);
  const auto peer = connect(*owner);
  std::vector<std::byte> destination(64 * kMiB);
  const ReadRange range{1, 0, destination.data(), destination.size()};
  const auto read = reader_->read(*peer, {&range, 1}, soon());
  while (!read->done() && read->bytes_done() < 4 * kMiB) std::this_thread::yield();
  owner->kill();
  const Status status = read->wait(soon());
  if (status.is_ok()) {
    EXPECT_EQ(first_mismatch(destination, 1), -1);
  } else {
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
  }
}

TEST_P(TransportContract, OwnerThatIsStoppedMeetsTheDeadlineAndWritesNothingLater) {
  if (!can_damage()) GTEST_SKIP() << "an owner in this process cannot be stopped alone";
  const auto healthy = make_owner();
  healthy->add_region(kMiB, 9);
  const auto healthy_peer = connect(*healthy);
  const auto owner = make_owner();
  owner->add_region(32 * kMiB, 1);
  const auto peer = connect(*owner, {.label = "rank 3"});
  std::vector<std::byte> destination(32 * kMiB, kUntouched);
  const ReadRange range{1, 0, destination.data(), destination.size()};
  auto read = reader_->read(*peer, {&range, 1}, Deadline::after_seconds(0.5));
  while (!is_callback() && !read->done() && read->bytes_done() < 2 * kMiB) {
    std::this_thread::yield();
  }
  owner->stop();
  Status status = read->wait(soon());
  if (!status.is_ok()) {  // not the case when all was on its way before the stop
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("rank 3"));
  }
  std::vector<std::byte> other(kMiB);
  EXPECT_TRUE(read_whole(*healthy_peer, 1, other).is_ok());
  status = read_whole(*peer, 1, other, 0, Deadline::after_seconds(0.2));
  EXPECT_FALSE(status.is_ok());
  read.reset();  // released, or cut
  std::fill(destination.begin(), destination.end(), kUntouched);
  owner->resume();
  EXPECT_TRUE(read_whole(*healthy_peer, 1, other).is_ok());
  const auto again = connect(*owner);
  std::vector<std::byte> all(32 * kMiB);
  status = read_whole(*again, 1, all);
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_EQ(first_mismatch(all, 1), -1);
  EXPECT_EQ(destination, std::vector<std::byte>(32 * kMiB, kUntouched));
}

TEST_P(TransportContract, AbortEndsAWait) {
  if (!can_damage()) GTEST_SKIP() << "needs an owner that does not answer";
  const auto owner = make_owner();
  owner->add_region(kMiB, 1);
  const auto peer = connect(*owner);
  owner->stop();
  std::vector<std::byte> destination(kMiB);
  const ReadRange range{1, 0, destination.data(), destination.size()};
  AbortSignal abort;
  const auto read = reader_->read(*peer, {&range, 1}, soon());
  std::thread raiser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    abort.raise(aborted("rank 5 gave up"));
  });
  const Status status = read->wait(soon(), &abort);
  raiser.join();
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_EQ(status.message(), "rank 5 gave up");
  owner->resume();
}

TEST_P(TransportContract, SignalsArriveInOrder) {
  const auto owner = make_owner();
  owner->add_region(1, 1);
  const auto peer = connect(*owner);
  std::vector<std::string> expected;
  for (std::size_t i = 0; i < 400; ++i) {
    const std::size_t bytes = i % 50 == 49 ? kMaxSignalBytes - i : i % 100;
    std::vector<std::byte> message(bytes, static_cast<std::byte>(i));
    expected.push_back(testing::describe_signal("reader", message));
    ASSERT_TRUE(reader_->signal(*peer, message).is_ok());
  }
  EXPECT_EQ(owner->signals(expected.size()), expected);
  EXPECT_FALSE(reader_->signal(*peer, std::vector<std::byte>(kMaxSignalBytes + 1)).is_ok());
}

TEST_P(TransportContract, SignalsSentBeforeACloseArrive) {
  const auto owner = make_owner();
  owner->add_region(1, 1);
  auto peer = connect(*owner);
  std::vector<std::string> expected;
  for (std::size_t i = 0; i < 20; ++i) {
    std::vector<std::byte> message(1000 * i, static_cast<std::byte>(i));
    expected.push_back(testing::describe_signal("reader", message));
    ASSERT_TRUE(reader_->signal(*peer, message).is_ok());
  }
  peer.reset();
  EXPECT_EQ(owner->signals(expected.size()), expected);
}

TEST_P(TransportContract, SignalsWaitForTheirHandlerAndAnswersFindTheWayBack) {
  const auto other = make_transport("other");
  auto peer = connect(other->descriptor().value());
  ASSERT_TRUE(reader_->signal(*peer, std::vector<std::byte>(3, std::byte{1})).is_ok());
  ASSERT_TRUE(eventually([&] { return other->statistics().signals_received == 1; }));
  std::string label, instance;
  other->set_signal_handler([&](const Transport::Sender& sender, std::span<const std::byte> bytes) {
    label = sender.label;
    instance = sender.instance;
    EXPECT_EQ(bytes.size(), 3u);
  });
  EXPECT_EQ(label, "reader");
  EXPECT_EQ(instance, reader_->instance());
  other->set_signal_handler({});
}

TEST_P(TransportContract, APeerThatTakesNoSignalsFillsItsQueue) {
  if (!variant().processes) GTEST_SKIP() << "needs a process that is stopped";
  const auto owner = make_owner();
  const auto peer = connect(*owner, {.label = "rank 3"});
  const std::vector<std::byte> message(kMaxSignalBytes);
  ASSERT_TRUE(reader_->signal(*peer, message).is_ok());
  owner->signals(1);
  owner->stop();
  Status status;
  for (int i = 0; i < 4000 && status.is_ok(); ++i) status = reader_->signal(*peer, message);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("rank 3"));
  owner->resume();
}

TEST_P(TransportContract, ClosingTwiceIsFine) {
  const auto owner = make_owner();
  owner->add_region(kMiB, 1);
  const auto peer = connect(*owner);
  std::vector<std::byte> memory(kMiB);
  auto region = reader_->register_memory(memory.data(), memory.size());
  ASSERT_TRUE(region.is_ok());
  (*region)->close(soon());
  (*region)->close(soon());
  peer->close();
  peer->close();
  const Status closed = read_whole(*peer, 1, memory);
  EXPECT_EQ(closed.code(), StatusCode::kAborted) << closed.to_string();
  reader_->close();
  reader_->close();
  EXPECT_EQ(reader_->descriptor().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(reader_->register_memory(memory.data(), 1).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(reader_->connect(owner->descriptor(), {}, soon()).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_P(TransportContract, ClosingATransportEndsItsReads) {
  if (!can_damage()) GTEST_SKIP() << "needs an owner that does not answer";
  const auto owner = make_owner();
  owner->add_region(32 * kMiB, 1);
  const auto peer = connect(*owner);
  owner->stop();
  std::vector<std::byte> destination(32 * kMiB);
  const ReadRange range{1, 0, destination.data(), destination.size()};
  const auto read = reader_->read(*peer, {&range, 1}, soon());
  reader_->close();
  EXPECT_EQ(read->wait(soon()).code(), StatusCode::kAborted);
  owner->resume();
}

TEST_P(TransportContract, AClosedTransportHasReleasedWhatItWasWritingTo) {
  const auto owner = make_owner();
  owner->add_region(32 * kMiB, 1);
  std::vector<std::byte> destination(32 * kMiB);
  for (int round = 0; round < 8; ++round) {
    const auto reader = make_transport("reader");
    auto peer = reader->connect(owner->descriptor(), {}, soon());
    ASSERT_TRUE(peer.is_ok());
    const ReadRange range{1, 0, destination.data(), destination.size()};
    const auto read = reader->read(**peer, {&range, 1}, soon());
    EXPECT_TRUE(eventually([&] { return read->bytes_done() > 0; }));
    reader->close();
    EXPECT_TRUE(eventually([&] { return read->destination_released(); }));
  }
}

INSTANTIATE_TEST_SUITE_P(All, TransportContract,
                         ::testing::Values(Variant{"callback", false}, Variant{"ucx", false},
                                           Variant{"ucx", true},
                                           Variant{std::string(kByRendezvous), false},
                                           Variant{std::string(kByRendezvous), true}),
                         variant_name);

std::uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), length);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return ntohs(address.sin_port);
}

TEST(UcxTransport, RefusesAnOwnerThatWasRestartedOnTheSamePort) {
  const std::vector<std::pair<std::string, std::string>> env = {
      {"UCX_TCP_PORT_RANGE", concat(free_port())}, {"UCX_NET_DEVICES", "lo"}};
  auto owner = testing::start_owner_process("ucx", env);
  owner->add_region(kMiB, 1);
  const auto descriptor = owner->descriptor();
  std::vector<std::byte> destination(kMiB, kUntouched);
  const ReadRange range{1, 0, destination.data(), destination.size()};
  {
    const auto first = make_ucx("reader");  // gone before the port is used again
    auto peer = first->connect(descriptor, {}, soon());
    ASSERT_TRUE(first->read(**peer, {&range, 1}, soon())->wait(soon()).is_ok());
  }
  const auto reader = make_ucx("reader");
  owner->kill();
  owner = testing::start_owner_process("ucx", env);
  owner->add_region(kMiB, 2);
  owner->descriptor();
  std::fill(destination.begin(), destination.end(), kUntouched);
  auto peer = reader->connect(descriptor, {.label = "rank 3"}, soon());
  const Status status = reader->read(**peer, {&range, 1}, soon())->wait(soon());
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("rank 3"));
  EXPECT_EQ(destination, std::vector<std::byte>(kMiB, kUntouched));
  auto fresh = reader->connect(owner->descriptor(), {}, soon());
  ASSERT_TRUE(fresh.is_ok());
  const Status works = reader->read(**fresh, {&range, 1}, soon())->wait(soon());
  EXPECT_TRUE(works.is_ok()) << works.to_string();
  EXPECT_EQ(first_mismatch(destination, 2), -1);
}

TEST(UcxTransport, OwnersOutliveReadersThatAreKilledWhileDataFlows) {
  const auto owner = testing::make_local_owner(make_ucx("owner"), {});
  owner->add_region(16 * kMiB, 1);
  const auto descriptor = owner->descriptor();
  const auto healthy = make_ucx("reader");
  auto peer = healthy->connect(descriptor, {}, soon());
  ASSERT_TRUE(peer.is_ok());
  for (int round = 0; round < 8; ++round) {
    const auto doomed = testing::start_owner_process("ucx");
    doomed->read_for_ever(descriptor, 1);
    doomed->kill();
    std::vector<std::byte> destination(16 * kMiB);
    const ReadRange range{1, 0, destination.data(), destination.size()};
    const Status status = healthy->read(**peer, {&range, 1}, soon())->wait(soon());
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    EXPECT_EQ(first_mismatch(destination, 1), -1);
  }
  owner->close_region(1);  // waits for none of the dead
}

TEST(UcxTransport, ClosingARegionDoesNotWaitForAReaderThatIsStopped) {
  const auto transport = make_ucx("owner");
  std::vector<std::byte> memory(16 * kMiB);
  testing::fill_pattern(memory, 1);
  auto region = transport->register_memory(memory.data(), memory.size());
  ASSERT_TRUE(region.is_ok());
  const auto stopped = testing::start_owner_process("ucx");
  stopped->read_for_ever(transport->descriptor().value(), (*region)->id());
  stopped->stop();
  (*region)->close(Deadline::after_seconds(0.1));
  std::fill(memory.begin(), memory.end(), std::byte{0xff});
  stopped->resume();
  EXPECT_EQ(stopped->mismatches(), 0u);
}

double cpu_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// UCX's TCP asks for room in the socket until the peer has answered the connection, and gets it at
// once.
TEST(UcxTransport, LeavesTheProcessorToAnOwnerThatHasNotAnsweredYet) {
  const auto owner = testing::start_owner_process("ucx");
  const auto descriptor = owner->descriptor();
  const auto reader = make_ucx("reader");
  auto peer = reader->connect(descriptor, {}, soon());
  ASSERT_TRUE(peer.is_ok());
  owner->stop();
  ASSERT_TRUE(reader->signal(**peer, std::vector<std::byte>(1)).is_ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // to make its worker
  constexpr std::chrono::milliseconds kWait{300};
  const double before = cpu_seconds();
  std::this_thread::sleep_for(kWait);
  // Of the processor, not of the clock: a busy machine only makes it less.
  EXPECT_LT(cpu_seconds() - before, 0.25 * std::chrono::duration<double>(kWait).count());
  owner->resume();
  EXPECT_EQ(owner->signals(1).size(), 1u);
}

TEST(UcxTransport, IsViableHere) {
  EXPECT_TRUE(ucx_viable({}, soon()).is_ok());
  const Status status = ucx_viable({.net_devices = "nonesuch7"}, soon());
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("nonesuch7"));
}

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  if (const std::string backend = ckpt::testing::owner_process_backend(argc, argv);
      !backend.empty()) {
    return ckpt::testing::run_owner_process(ckpt::make_ucx("owner", backend));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
