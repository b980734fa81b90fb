// The channel over the native wire, from both ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "worker/channel_address.h"
#include "worker/closer.h"
#include "worker/native_messages.h"
#include "worker/secret_proof.h"
#include "worker/test_update.h"
#include "worker/wait.h"
#include "worker/zmq_socket.h"

namespace ckpt {
namespace {

using test::soon;
using testing::AllOf;
using testing::HasSubstr;

class NativeChannelTest : public testing::Test {
 protected:
  std::unique_ptr<WorkerChannel> bind() { return test::bind(options_); }

  const std::string job_ = test::unique_job();
  test::Ring ring_{job_};
  ChannelOptions options_ = test::channel_options(job_, ring_);
  AbortSignal abort_;
  test::TestLoader loader_;
};

TEST_F(NativeChannelTest, LoadsAndVerifiesEveryByte) {
  loader_.by_load = {"layers.2.weight"};
  const auto channel = bind();
  auto received = test::receive_in_thread(channel->address(), loader_);
  const auto pass = test::run_pass(*channel, ring_, abort_);
  ASSERT_TRUE(pass.is_ok()) << pass.status().to_string();
  EXPECT_EQ(pass->hello.wire, Wire::kNative);
  EXPECT_EQ(pass->hello.pid, ::getpid());
  EXPECT_EQ(pass->sum.tensors, ring_.size());
  EXPECT_EQ(pass->sum.bytes, ring_.total_bytes());
  EXPECT_EQ(pass->sum.verified_tensors, ring_.size());
  const auto report = received.get();
  ASSERT_TRUE(report.is_ok()) << report.status().to_string();
  EXPECT_EQ(report->tensors, ring_.size());
  EXPECT_EQ(report->bytes, ring_.total_bytes());
  EXPECT_EQ(report->verified_tensors, ring_.size());
  EXPECT_EQ(report->buckets, 3u);
  EXPECT_TRUE(loader_.finished);
  EXPECT_TRUE(loader_.holds(ring_));
}

TEST_F(NativeChannelTest, SaysThatNothingWasVerifiedWhenTheRankForbidsIt) {
  options_.verify = false;
  const auto channel = bind();
  auto received = test::receive_in_thread(channel->address(), loader_);
  const auto pass = test::run_pass(*channel, ring_, abort_);
  ASSERT_TRUE(pass.is_ok()) << pass.status().to_string();
  EXPECT_EQ(pass->sum.verified_tensors, 0u);
  EXPECT_EQ(received.get()->verified_tensors, 0u);
  EXPECT_TRUE(loader_.holds(ring_));
}

TEST_F(NativeChannelTest, ServesFurtherPassesOnTheSameAddress) {
  const auto channel = bind();
  for (int pass = 0; pass < 3; ++pass) {
    test::TestLoader loader;
    auto received = test::receive_in_thread(channel->address(), loader);
    while (!channel->connected_again()) {
      ASSERT_TRUE(*wait_for_any({channel->poll_fd()}, soon(), nullptr) == Wake::kReadable);
    }
    const auto outcome = test::run_pass(*channel, ring_, abort_);
    ASSERT_TRUE(outcome.is_ok()) << outcome.status().to_string();
    ASSERT_TRUE(received.get().is_ok());
    EXPECT_TRUE(loader.holds(ring_));
    EXPECT_FALSE(channel->connected_again());
  }
}

TEST_F(NativeChannelTest, ProvesTheSecret) {
  options_.secret = "squeamish ossifrage";
  const auto channel = bind();
  ReceiverOptions receiver;
  receiver.secret = options_.secret;
  auto received = test::receive_in_thread(channel->address(), loader_, receiver);
  const auto pass = test::run_pass(*channel, ring_, abort_);
  EXPECT_TRUE(pass.is_ok()) << pass.status().to_string();
  EXPECT_TRUE(received.get().is_ok());
}

TEST_F(NativeChannelTest, BothSidesExplainADifferentSecret) {
  options_.secret = "one";
  for (const char* secret : {"other", ""}) {
    const auto channel = bind();
    ReceiverOptions receiver;
    receiver.secret = secret;
    auto received = test::receive_in_thread(channel->address(), loader_, receiver);
    const auto hello = channel->accept(soon(), abort_);
    ASSERT_FALSE(hello.is_ok());
    EXPECT_THAT(hello.status().message(), HasSubstr("secret"));
    const auto report = received.get();
    ASSERT_FALSE(report.is_ok());
    EXPECT_THAT(report.status().message(), HasSubstr("secret"));
    EXPECT_FALSE(loader_.finished);
  }
}

TEST_F(NativeChannelTest, WrongBytesAreDataLossOnBothSides) {
  for (const bool by_load : {false, true}) {
    const auto channel = bind();
    test::TestLoader loader;
    if (by_load) loader.by_load = {"layers.4.weight"};
    auto received = test::receive_in_thread(channel->address(), loader);
    ring_.content(4)[1000] ^= std::byte{1};
    const auto pass = test::run_pass(*channel, ring_, abort_);
    ring_.content(4)[1000] ^= std::byte{1};
    ASSERT_FALSE(pass.is_ok());
    EXPECT_EQ(pass.status().code(), StatusCode::kDataLoss);
    const auto report = received.get();
    EXPECT_EQ(report.status().code(), StatusCode::kDataLoss);
    for (const Status& status : {pass.status(), report.status()}) {
      EXPECT_THAT(status.message(), AllOf(HasSubstr("layers.4.weight"), HasSubstr("ring offset"),
                                          HasSubstr("has digest 0x"), HasSubstr("registered")));
    }
    EXPECT_FALSE(loader.finished);
  }
}

TEST_F(NativeChannelTest, TheEnginesErrorReachesTheRank) {
  const auto channel = bind();
  loader_.before = [](const TensorInfo& tensor) {
    return tensor.name == "layers.2.weight" ? not_found("no such parameter") : Status::ok();
  };
  auto received = test::receive_in_thread(channel->address(), loader_);
  const auto pass = test::run_pass(*channel, ring_, abort_);
  EXPECT_EQ(pass.status().code(), StatusCode::kPeerError);
  EXPECT_THAT(pass.status().message(),
              AllOf(HasSubstr("worker of rank 3"), HasSubstr("layers.2.weight"),
                    HasSubstr("no such parameter")));
  EXPECT_EQ(received.get().status().code(), StatusCode::kNotFound);
  EXPECT_EQ(channel->release(soon(), abort_).code(), StatusCode::kPeerError);
}

TEST_F(NativeChannelTest, AnErrorAfterLoadingReachesTheRank) {
  const auto channel = bind();
  loader_.at_finish = internal_error("post-load hook raised");
  auto received = test::receive_in_thread(channel->address(), loader_);
  const auto pass = test::run_pass(*channel, ring_, abort_);
  EXPECT_EQ(pass.status().code(), StatusCode::kPeerError);
  EXPECT_THAT(pass.status().message(), HasSubstr("post-load hook raised"));
  EXPECT_FALSE(received.get().is_ok());
}

TEST_F(NativeChannelTest, TheRanksCauseReachesTheWorkerUnchanged) {
  auto channel = bind();
  auto received = test::receive_in_thread(channel->address(), loader_);
  ASSERT_TRUE(channel->accept(soon(), abort_).is_ok());
  ASSERT_TRUE(channel->open_ring(ring_.handle(), soon(), abort_).is_ok());
  ASSERT_TRUE(channel->announce(0, ring_.entries(0, 2)).is_ok());
  auto kept = std::make_shared<int>(0);
  const std::weak_ptr<int> ring_memory = kept;
  const Status cause = data_loss("tensor w is damaged").on_rank(11);
  WorkerChannel::abort(std::move(channel), cause, soon(), std::move(kept));
  const Status seen = received.get().status();
  EXPECT_EQ(seen.code(), cause.code());
  EXPECT_EQ(seen.rank(), cause.rank());
  EXPECT_EQ(seen.message(), cause.message());
  EXPECT_TRUE(wait_for_rings(job_, 3, soon(), abort_).is_ok());
  EXPECT_TRUE(ring_memory.expired());
}

TEST_F(NativeChannelTest, AWorkerThatComesAfterTheAbortIsToldToo) {
  auto channel = bind();
  const std::string address = channel->address();
  WorkerChannel::abort(std::move(channel), aborted("rank 5 died").on_rank(5), soon());
  const Status seen = test::receive_in_thread(address, loader_).get().status();
  EXPECT_EQ(seen.code(), StatusCode::kAborted);
  EXPECT_EQ(seen.message(), "rank 5 died");
}

TEST_F(NativeChannelTest, AbortEndsAWaitWithItsCause) {
  const auto channel = bind();
  std::thread raiser([&] { abort_.raise(aborted("engine answered 500")); });
  const auto hello = channel->accept(soon(), abort_);
  raiser.join();
  EXPECT_EQ(hello.status().message(), "engine answered 500");
}

TEST_F(NativeChannelTest, DeadlinesAreExplained) {
  const auto channel = bind();
  const auto hello = channel->accept(Deadline::after_seconds(0.05), abort_);
  EXPECT_EQ(hello.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(hello.status().message(), HasSubstr(channel->address()));
}

TEST_F(NativeChannelTest, CallsInTheWrongStateChangeNothing) {
  const auto channel = bind();
  EXPECT_EQ(channel->announce(0, ring_.entries()).code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(channel->release(soon(), abort_).message(),
              AllOf(HasSubstr("bound"), HasSubstr("ring open")));
  auto received = test::receive_in_thread(channel->address(), loader_);
  EXPECT_TRUE(test::run_pass(*channel, ring_, abort_).is_ok());
  EXPECT_TRUE(received.get().is_ok());
}

TEST_F(NativeChannelTest, TheWindowIsKept) {
  auto channel = bind();
  auto received = test::receive_in_thread(channel->address(), loader_);
  ASSERT_TRUE(channel->accept(soon(), abort_).is_ok());
  ASSERT_TRUE(channel->open_ring(ring_.handle(), soon(), abort_).is_ok());
  for (int i = 0; i < channel->window(); ++i) {
    ASSERT_TRUE(channel->announce(static_cast<std::uint32_t>(i), ring_.entries(0, 1)).is_ok());
  }
  EXPECT_EQ(channel->announce(9, ring_.entries(0, 1)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(channel->release(soon(), abort_).code(), StatusCode::kFailedPrecondition);
  for (int i = 0; i < channel->window(); ++i) {
    EXPECT_TRUE(channel->wait_ack(soon(), abort_).is_ok());
  }
  channel.reset();
  EXPECT_EQ(received.get().status().code(), StatusCode::kPeerLost);
}

TEST_F(NativeChannelTest, AReleaseBeforeEverythingHasComeIsRefused) {
  options_.total_tensors += 1;
  const auto channel = bind();
  auto received = test::receive_in_thread(channel->address(), loader_);
  EXPECT_EQ(test::run_pass(*channel, ring_, abort_).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(received.get().status().code(), StatusCode::kDataLoss);
  EXPECT_FALSE(loader_.finished);
}

TEST_F(NativeChannelTest, ASecondWorkerIsRefusedAndTheFirstGoesOn) {
  const auto channel = bind();
  auto first = test::receive_in_thread(channel->address(), loader_);
  ASSERT_TRUE(channel->accept(soon(), abort_).is_ok());
  test::TestLoader other;
  auto second = test::receive_in_thread(channel->address(), other);
  // Its hello is answered by whatever the rank does next that reads the socket.
  while (second.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready) {
    channel->connected_again();
    ASSERT_EQ(channel->announce(0, {}).code(), StatusCode::kFailedPrecondition);
    if (wait_for_any({channel->poll_fd()}, Deadline::after_seconds(0), nullptr).value() ==
        Wake::kReadable) {
      break;
    }
  }
  ASSERT_TRUE(channel->open_ring(ring_.handle(), soon(), abort_).is_ok());
  const Status refused = second.get().status();
  EXPECT_EQ(refused.code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(refused.rank(), 3);
  ASSERT_TRUE(channel->announce(0, ring_.entries()).is_ok());
  EXPECT_TRUE(channel->wait_ack(soon(), abort_).is_ok());
  EXPECT_TRUE(channel->release(soon(), abort_).is_ok());
  EXPECT_TRUE(channel->finish(soon(), abort_).is_ok());
  EXPECT_TRUE(first.get().is_ok());
}

TEST_F(NativeChannelTest, AnAddressWithoutARankIsUnavailable) {
  const auto report = update_weights(channel_address(job_, 0, 1), loader_);
  EXPECT_EQ(report.status().code(), StatusCode::kUnavailable);
}

TEST_F(NativeChannelTest, AnAddressOfThePythonPackageIsExplained) {
  const auto report = update_weights("ipc://@checkpoint-engine-1234-0.sock", loader_);
  EXPECT_EQ(report.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(report.status().message(), HasSubstr("Python package"));
}

TEST_F(NativeChannelTest, ATakenAddressIsAnError) {
  const auto channel = bind();
  const auto second = WorkerChannel::bind(options_);
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
}

TEST_F(NativeChannelTest, LongJobNamesStillFit) {
  options_.job = std::string(300, 'j') + " /\n";
  options_.rank = 2147483647;
  options_.epoch = ~0ull;
  const auto channel = bind();
  EXPECT_LE(channel->address().size() + std::string(".native").size() - 6, 107u);
  auto received = test::receive_in_thread(channel->address(), loader_);
  EXPECT_TRUE(test::run_pass(*channel, ring_, abort_).is_ok());
  EXPECT_TRUE(received.get().is_ok());
}

TEST_F(NativeChannelTest, AKilledWorkerIsLost) {
  const auto channel = bind();
  test::RoleProcess worker("worker", {channel->address(), "die"});
  const auto pass = test::run_pass(*channel, ring_, abort_);
  EXPECT_EQ(pass.status().code(), StatusCode::kPeerLost);
  EXPECT_THAT(pass.status().message(), HasSubstr(std::to_string(worker.pid())));
  EXPECT_EQ(worker.wait(), -SIGKILL);
}

TEST_F(NativeChannelTest, AStoppedWorkerIsLost) {
  options_.heartbeat_timeout_seconds = 0.5;
  const auto channel = bind();
  test::RoleProcess worker("worker", {channel->address(), "stop"});
  const auto pass = test::run_pass(*channel, ring_, abort_);
  EXPECT_EQ(pass.status().code(), StatusCode::kPeerLost);
  EXPECT_THAT(pass.status().message(), HasSubstr("stopped answering"));
}

TEST_F(NativeChannelTest, AStoppedWorkerKeepsItsRingUntilItGoesOnOrEnds) {
  options_.heartbeat_timeout_seconds = 1.5;
  options_.late_worker_seconds = 0.1;
  for (const int end : {SIGCONT, SIGKILL}) {
    auto channel = bind();
    test::RoleProcess worker("worker", {channel->address(), "stop"});
    const Status lost = test::run_pass(*channel, ring_, abort_).status();
    auto memory = std::make_shared<int>(0);
    const std::weak_ptr<int> held = memory;
    WorkerChannel::abort(std::move(channel), lost, soon(), std::move(memory));
    EXPECT_EQ(wait_for_rings(job_, 3, Deadline::after_seconds(0.5), abort_).code(),
              StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(held.expired());
    worker.signal(end);
    if (end == SIGCONT) {
      EXPECT_THAT(worker.read_line(), HasSubstr("peer lost"));
    }
    EXPECT_TRUE(wait_for_rings(job_, 3, soon(), abort_).is_ok());
    EXPECT_TRUE(held.expired());
    EXPECT_TRUE(wait_for_closers(job_, soon()).is_ok());  // the address is free again
  }
}

TEST_F(NativeChannelTest, AStoppedWorkerKeepsNothingOfTheHostBehindTheDeadline) {
  options_.heartbeat_timeout_seconds = 1.5;
  auto channel = bind();
  test::RoleProcess worker("worker", {channel->address(), "stop"});
  const Status lost = test::run_pass(*channel, ring_, abort_).status();
  auto memory = std::make_shared<int>(0);
  const std::weak_ptr<int> held = memory;
  WorkerChannel::abort(std::move(channel), lost, Deadline::after_seconds(0), std::move(memory));
  EXPECT_TRUE(wait_for_closers(job_, soon()).is_ok());  // nobody to tell: it does not come back
  EXPECT_TRUE(held.expired());
}

TEST_F(NativeChannelTest, AKilledRankIsLost) {
  test::RoleProcess rank("rank", {test::unique_job(), "die"});
  loader_.before = [](const TensorInfo&) { return Status::ok(); };
  const auto report = update_weights(rank.read_line(), loader_);
  EXPECT_EQ(report.status().code(), StatusCode::kPeerLost);
  EXPECT_EQ(rank.wait(), -SIGKILL);
}

TEST_F(NativeChannelTest, AStoppedRankIsLost) {
  test::RoleProcess rank("rank", {test::unique_job(), "stop"});
  ReceiverOptions receiver;
  receiver.heartbeat_timeout_seconds = 0.5;
  const auto report = update_weights(rank.read_line(), loader_, receiver);
  EXPECT_EQ(report.status().code(), StatusCode::kPeerLost);
}

TEST_F(NativeChannelTest, ASilentRankMeetsTheReceiversTimeout) {
  const auto channel = bind();
  ReceiverOptions receiver;
  receiver.timeout_seconds = 0.1;
  auto received = test::receive_in_thread(channel->address(), loader_, receiver);
  ASSERT_TRUE(channel->accept(soon(), abort_).is_ok());
  EXPECT_EQ(received.get().status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(channel->open_ring(ring_.handle(), soon(), abort_).code(), StatusCode::kPeerError);
}

TEST_F(NativeChannelTest, WorksBetweenProcesses) {
  const auto channel = bind();
  test::RoleProcess worker("worker", {channel->address(), "load"});
  const auto pass = test::run_pass(*channel, ring_, abort_);
  EXPECT_TRUE(pass.is_ok()) << pass.status().to_string();
  EXPECT_EQ(pass->hello.pid, worker.pid());
  EXPECT_EQ(worker.read_line(), "ok");
  EXPECT_EQ(worker.wait(), 0);
}

/// A worker that speaks the wire by hand.
class ScriptedWorker {
 public:
  explicit ScriptedWorker(const std::string& address) {
    ZmqOptions zmq;
    zmq.type = ZmqOptions::Type::kDealer;
    socket_ = std::move(ZmqSocket::connect(native_address(address).value(), zmq)).value();
  }

  void send(std::uint64_t epoch, const native::Body& body) { send(native::encode(epoch, body)); }
  void send(const native::Bytes& bytes) { EXPECT_TRUE(socket_->send({}, bytes).is_ok()); }

  template <typename T>
  T receive() {
    while (true) {
      auto message = socket_->receive();
      if (message.is_ok() && *message) {
        auto decoded = native::decode((*message)->content);
        EXPECT_TRUE(std::holds_alternative<T>(decoded->body)) << native::body_name(decoded->body);
        return std::get<T>(decoded->body);
      }
      EXPECT_EQ(wait_for_any({socket_->fd()}, soon(), nullptr).value(), Wake::kReadable);
    }
  }

  /// The whole handshake, as a good worker does it.
  void shake_hands(std::uint64_t epoch) {
    native::Hello hello = good_hello();
    send(0, hello);
    const auto challenge = receive<native::Challenge>();
    send(epoch, native::Proof{native::prove_secret("", native::Role::kWorker,
                                                   {hello.nonce, challenge.nonce, epoch})});
    receive<native::Welcome>();
  }

  static native::Hello good_hello() {
    native::Hello hello;
    hello.software = "scripted worker";
    hello.capabilities = native::kCanOpenHostRings;
    hello.digest_algorithm = 1;
    hello.nonce = native::make_nonce();
    return hello;
  }

 private:
  std::unique_ptr<ZmqSocket> socket_;
};

TEST_F(NativeChannelTest, AnotherProtocolVersionIsExplainedToBoth) {
  const auto channel = bind();
  ScriptedWorker worker(channel->address());
  native::Hello hello = ScriptedWorker::good_hello();
  hello.protocol = 99;
  worker.send(0, hello);
  const Status refused = channel->accept(soon(), abort_).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  const Status told = worker.receive<native::Failure>().cause;
  for (const Status& status : {refused, told}) {
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("99"), HasSubstr("scripted worker"), HasSubstr("same version")));
  }
}

TEST_F(NativeChannelTest, AnotherDigestAlgorithmIsExplained) {
  const auto channel = bind();
  ScriptedWorker worker(channel->address());
  native::Hello hello = ScriptedWorker::good_hello();
  hello.digest_algorithm = 2;
  worker.send(0, hello);
  EXPECT_THAT(channel->accept(soon(), abort_).status().message(), HasSubstr("algorithm 1"));
}

TEST_F(NativeChannelTest, MessagesOfAnotherEpochAreDropped) {
  const auto channel = bind();
  ScriptedWorker worker(channel->address());
  std::thread script([&] {
    worker.shake_hands(options_.epoch);
    worker.receive<native::OpenRing>();
    worker.send(options_.epoch - 1, native::Failure{internal_error("of the update before")});
    worker.send(options_.epoch, native::RingOpened{});
  });
  EXPECT_TRUE(channel->accept(soon(), abort_).is_ok());
  EXPECT_TRUE(channel->open_ring(ring_.handle(), soon(), abort_).is_ok());
  script.join();
}

TEST_F(NativeChannelTest, GarbageFromTheWorkerIsAProtocolError) {
  const auto channel = bind();
  ScriptedWorker worker(channel->address());
  std::thread script([&] {
    worker.shake_hands(options_.epoch);
    worker.receive<native::OpenRing>();
    worker.send(native::Bytes(37, std::byte{0x5a}));
  });
  EXPECT_TRUE(channel->accept(soon(), abort_).is_ok());
  EXPECT_EQ(channel->open_ring(ring_.handle(), soon(), abort_).code(), StatusCode::kProtocol);
  script.join();
}

TEST_F(NativeChannelTest, GarbageFromAStrangerIsDropped) {
  const auto channel = bind();
  ScriptedWorker stranger(channel->address());
  stranger.send(native::Bytes(37, std::byte{0x5a}));
  stranger.send(0, native::PassFinished{});
  auto received = test::receive_in_thread(channel->address(), loader_);
  EXPECT_TRUE(test::run_pass(*channel, ring_, abort_).is_ok());
  EXPECT_TRUE(received.get().is_ok());
}

TEST_F(NativeChannelTest, AWrongCountIsAProtocolError) {
  const auto channel = bind();
  ScriptedWorker worker(channel->address());
  std::thread script([&] {
    worker.shake_hands(options_.epoch);
    worker.receive<native::OpenRing>();
    worker.send(options_.epoch, native::RingOpened{});
    worker.receive<native::Bucket>();
    worker.send(options_.epoch, native::BucketLoaded{{0, 1, 1, 1, 0}});
  });
  const auto pass = test::run_pass(*channel, ring_, abort_);
  EXPECT_EQ(pass.status().code(), StatusCode::kProtocol);
  script.join();
}

TEST_F(NativeChannelTest, AWorkerThatCannotOpenTheRingIsNotAsked) {
  const auto channel = bind();
  ScriptedWorker worker(channel->address());
  std::thread script([&] { worker.shake_hands(options_.epoch); });
  EXPECT_TRUE(channel->accept(soon(), abort_).is_ok());
  BufferHandle handle;
  handle.kind = DeviceKind::kCuda;
  EXPECT_EQ(channel->open_ring(handle, soon(), abort_).code(), StatusCode::kUnsupported);
  script.join();
}

TEST_F(NativeChannelTest, AWorkerThatDoesNotAnswerMeetsTheDeadline) {
  const auto channel = bind();
  ScriptedWorker worker(channel->address());
  std::thread script([&] {
    worker.shake_hands(options_.epoch);
    worker.receive<native::OpenRing>();
  });
  EXPECT_TRUE(channel->accept(soon(), abort_).is_ok());
  const Status late = channel->open_ring(ring_.handle(), Deadline::after_seconds(0.1), abort_);
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(late.message(), AllOf(HasSubstr("OpenRing"), HasSubstr("pid")));
  script.join();
}

TEST_F(NativeChannelTest, AnAbortThatNobodyHearsEndsAtItsDeadline) {
  auto channel = bind();
  ScriptedWorker worker(channel->address());
  std::thread script([&] { worker.shake_hands(options_.epoch); });
  ASSERT_TRUE(channel->accept(soon(), abort_).is_ok());
  script.join();
  auto ring = std::make_shared<int>(0);
  const std::weak_ptr<int> held = ring;
  WorkerChannel::abort(std::move(channel), aborted("test"), Deadline::after_seconds(0.1),
                       std::move(ring));
  EXPECT_EQ(worker.receive<native::Failure>().cause.message(), "test");
  EXPECT_TRUE(wait_for_rings(job_, 3, soon(), abort_).is_ok());
  EXPECT_TRUE(held.expired());
}

}  // namespace
}  // namespace ckpt
