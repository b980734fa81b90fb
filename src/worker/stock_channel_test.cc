// The channel over the stock wire: the Python package's worker, with everything that it does
// silently wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <future>

#include "worker/closer.h"
#include "worker/gate.h"
#include "worker/rescue.h"
#include "worker/stock_messages.h"
#include "worker/test_stock_worker.h"
#include "worker/test_update.h"
#include "worker/wait.h"

namespace ckpt {
namespace {

using test::soon;
using test::Step;
using test::StockScript;
using test::StockWorker;
using test::Verb;
using testing::AllOf;
using testing::HasSubstr;

class StockChannelTest : public testing::Test {
 protected:
  void SetUp() override { channel_ = test::bind(options_); }

  void rebind() {
    channel_.reset();
    channel_ = test::bind(options_);
  }
  /// What an update over this channel ends with; then every worker is told, as a rank does it.
  Status fail_and_abort() {
    const Status cause = test::run_pass(*channel_, ring_, abort_).status();
    EXPECT_FALSE(cause.is_ok());
    WorkerChannel::abort(std::move(channel_), cause, soon());
    return cause;
  }
  Status lend_first_bucket(const BufferHandle& ring) {
    CKPT_RETURN_IF_ERROR(channel_->accept(soon(), abort_).status());
    CKPT_RETURN_IF_ERROR(channel_->open_ring(ring, soon(), abort_));
    return channel_->announce(0, ring_.entries(0, 1));
  }
  /// Until the worker, which stops itself in the second bucket, is lost by heartbeat.
  Status run_until_lost(const BufferHandle& ring) {
    CKPT_RETURN_IF_ERROR(lend_first_bucket(ring));
    CKPT_RETURN_IF_ERROR(channel_->wait_ack(soon(), abort_).status());
    CKPT_RETURN_IF_ERROR(channel_->announce(1, ring_.entries(1, 2)));
    return channel_->wait_ack(soon(), abort_).status();
  }
  /// Of a GPU that is not there; a scripted worker opens nothing.
  static BufferHandle gpu_ring() {
    BufferHandle handle;
    handle.kind = DeviceKind::kCuda;
    handle.bytes = 1 << 20;
    handle.ipc.resize(64);
    handle.device_uuid = "GPU-0";
    return handle;
  }
  /// No longer than it takes to see that it is still held.
  bool ring_is_held() {
    return wait_for_rings(job_, 3, Deadline::after_seconds(0.3), abort_).code() ==
           StatusCode::kDeadlineExceeded;
  }

  const std::string job_ = test::unique_job();
  test::Ring ring_{job_};
  ChannelOptions options_ = test::channel_options(job_, ring_);
  AbortSignal abort_;
  std::unique_ptr<WorkerChannel> channel_;
};

TEST_F(StockChannelTest, RunsAWholeUpdate) {
  StockWorker worker(channel_->address());
  const auto pass = test::run_pass(*channel_, ring_, abort_);
  ASSERT_TRUE(pass.is_ok()) << pass.status().to_string();
  EXPECT_EQ(pass->hello.wire, Wire::kStock);
  EXPECT_EQ(pass->hello.pid, ::getpid());
  EXPECT_EQ(pass->sum.bytes, ring_.total_bytes());
  EXPECT_EQ(pass->sum.verified_tensors, 0u);
  const auto outcome = worker.wait();
  EXPECT_TRUE(outcome.returned);
  ASSERT_EQ(outcome.messages.size(), 6u);  // handle, three buckets, None, None
  const auto handle = *pickle_ring(ring_.handle());
  EXPECT_EQ(outcome.messages[0],
            std::string(reinterpret_cast<const char*>(handle.data()), handle.size()));
}

TEST_F(StockChannelTest, ServesFurtherPassesOnTheSameAddress) {
  for (int i = 0; i < 3; ++i) {
    StockWorker worker(channel_->address());
    while (!channel_->connected_again()) {
      ASSERT_EQ(wait_for_any({channel_->poll_fd()}, soon(), nullptr).value(), Wake::kReadable);
    }
    const auto pass = test::run_pass(*channel_, ring_, abort_);
    ASSERT_TRUE(pass.is_ok()) << pass.status().to_string();
    EXPECT_TRUE(worker.wait().returned);
  }
}

TEST_F(StockChannelTest, AWorkerThatIsSlowToCloseIsNoOtherWorker) {
  std::promise<void> close;
  StockWorker worker(channel_->address(), {.linger = [&] { close.get_future().wait(); }});
  EXPECT_TRUE(test::run_pass(*channel_, ring_, abort_).is_ok());
  // ZeroMQ connects again 0.1 s after a connection has ended.
  const Deadline reconnected = Deadline::after(std::chrono::milliseconds(300));
  while (!reconnected.expired()) {
    ASSERT_FALSE(channel_->connected_again());
    (void)wait_for_any({channel_->poll_fd()}, reconnected, nullptr);
  }
  close.set_value();
  EXPECT_TRUE(worker.wait().returned);
}

TEST_F(StockChannelTest, TheWiresTakeTurns) {
  for (const bool stock : {true, false, true}) {
    test::TestLoader loader;
    if (stock) {
      StockWorker worker(channel_->address());
      EXPECT_TRUE(test::run_pass(*channel_, ring_, abort_).is_ok());
      EXPECT_TRUE(worker.wait().returned);
    } else {
      auto received = test::receive_in_thread(channel_->address(), loader);
      EXPECT_TRUE(test::run_pass(*channel_, ring_, abort_).is_ok());
      EXPECT_TRUE(received.get().is_ok());
    }
  }
}

TEST_F(StockChannelTest, ASecondWorkerSeesNothingOfTheFirstOnesPass) {
  StockWorker first(channel_->address());
  ASSERT_TRUE(channel_->accept(soon(), abort_).is_ok());
  StockWorker second(channel_->address());
  ASSERT_TRUE(channel_->open_ring(ring_.handle(), soon(), abort_).is_ok());
  for (std::uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(channel_->announce(i, ring_.entries(0, 1)).is_ok());
    ASSERT_TRUE(channel_->wait_ack(soon(), abort_).is_ok());
  }
  ASSERT_TRUE(channel_->release(soon(), abort_).is_ok());
  ASSERT_TRUE(channel_->finish(soon(), abort_).is_ok());
  EXPECT_EQ(first.wait().messages.size(), 7u);
  EXPECT_TRUE(test::run_pass(*channel_, ring_, abort_).is_ok());  // its own
  EXPECT_TRUE(second.wait().returned);
}

struct Misdeed {
  const char* name;
  Step at;
  Verb verb;
  StatusCode code;
  const char* text;
};

class StockMisdeedTest : public StockChannelTest, public testing::WithParamInterface<Misdeed> {};

/// Each silent failure of the wire is a prompt, explained error; no worker returns as if all were
/// well.
TEST_P(StockMisdeedTest, IsExplainedAtOnce) {
  const Misdeed& misdeed = GetParam();
  StockWorker worker(channel_->address(), {misdeed.at, 2, misdeed.verb, {}});
  const Status cause = fail_and_abort();
  EXPECT_EQ(cause.code(), misdeed.code);
  EXPECT_THAT(cause.message(), AllOf(HasSubstr("worker of rank 3"), HasSubstr(misdeed.text)));
  const auto outcome = worker.wait();
  EXPECT_FALSE(outcome.returned);
  if (misdeed.verb == Verb::kTraceback) {
    EXPECT_THAT(outcome.raised, HasSubstr("no memory"));
  }
}

std::string misdeed_name(const testing::TestParamInfo<Misdeed>& test) { return test.param.name; }

INSTANTIATE_TEST_SUITE_P(
    All, StockMisdeedTest,
    testing::Values(Misdeed{"HandleError", Step::kHandle, Verb::kTraceback, StatusCode::kPeerError,
                            "failed to open the ring: RuntimeError: no memory"},
                    Misdeed{"HandleSilent", Step::kHandle, Verb::kLeave, StatusCode::kPeerLost,
                            "open the ring"},
                    Misdeed{"LoadError", Step::kBucket, Verb::kTraceback, StatusCode::kPeerError,
                            "load bucket 1: RuntimeError: no memory"},
                    Misdeed{"UnknownDtype", Step::kBucket, Verb::kLeave, StatusCode::kPeerLost,
                            "dtype"},
                    Misdeed{"ReleaseSilent", Step::kRelease, Verb::kLeave, StatusCode::kPeerLost,
                            "release the ring"},
                    Misdeed{"HookRaises", Step::kHook, Verb::kLeave, StatusCode::kPeerLost,
                            "post-load hook raised"}),
    misdeed_name);

TEST_F(StockChannelTest, AnErrorInTheLastBucketCounts) {
  StockWorker worker(channel_->address(), {Step::kBucket, 3, Verb::kTraceback, {}});
  EXPECT_THAT(fail_and_abort().message(), HasSubstr("load bucket 2"));
  EXPECT_THAT(worker.wait().raised, HasSubstr("no memory"));
}

TEST_F(StockChannelTest, NobodyConnectsMeetsTheDeadline) {
  const auto hello = channel_->accept(Deadline::after_seconds(0.05), abort_);
  EXPECT_EQ(hello.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(hello.status().message(), HasSubstr("no worker of rank 3"));
}

TEST_F(StockChannelTest, TheEnginesEndWakesAWait) {
  StockWorker worker(channel_->address(), {Step::kHook, 0, Verb::kHang, {}});
  auto pass = std::async(std::launch::async,
                         [&] { return test::run_pass(*channel_, ring_, abort_).status(); });
  abort_.raise(peer_error("the engine answered 500"));
  EXPECT_EQ(pass.get().message(), "the engine answered 500");
}

TEST_F(StockChannelTest, AWorkerThatOwesAnAnswerIsToldWhenItHasGivenIt) {
  std::promise<void> reached;
  std::promise<void> go_on;
  StockWorker worker(channel_->address(), {Step::kBucket, 1, Verb::kObey, [&] {
                                             reached.set_value();
                                             go_on.get_future().wait();
                                           }});
  ASSERT_TRUE(lend_first_bucket(ring_.handle()).is_ok());
  reached.get_future().wait();
  auto memory = std::make_shared<int>(0);
  const std::weak_ptr<int> held = memory;
  WorkerChannel::abort(std::move(channel_), aborted("rank 5 died").on_rank(5), soon(),
                       std::move(memory));
  // While it loads, the ring is its own, and the rank's next update has to wait.
  EXPECT_EQ(wait_for_rings(job_, 3, Deadline::after_seconds(0.05), abort_).code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(held.expired());
  go_on.set_value();
  EXPECT_THAT(worker.wait().raised, HasSubstr("rank 5: aborted: rank 5 died"));
  EXPECT_TRUE(wait_for_rings(job_, 3, soon(), abort_).is_ok());
  EXPECT_TRUE(held.expired());
}

TEST_F(StockChannelTest, AWorkerThatOverstaysIsCutAndToldWhenItComesBack) {
  std::promise<void> reached;
  std::promise<void> go_on;
  StockWorker worker(channel_->address(), {Step::kBucket, 1, Verb::kObey, [&] {
                                             reached.set_value();
                                             go_on.get_future().wait();
                                           }});
  ASSERT_TRUE(lend_first_bucket(ring_.handle()).is_ok());
  reached.get_future().wait();
  WorkerChannel::abort(std::move(channel_), aborted("over"), Deadline::after_seconds(0.05),
                       std::make_shared<int>(0));
  EXPECT_TRUE(wait_for_rings(job_, 3, soon(), abort_).is_ok());
  go_on.set_value();
  EXPECT_THAT(worker.wait().raised, HasSubstr("over"));
}

TEST_F(StockChannelTest, AWorkerThatWasLongConnectedHasTimeToComeBackToo) {
  options_.late_worker_seconds = 2;
  rebind();
  std::promise<void> reached;
  std::promise<void> go_on;
  StockWorker worker(channel_->address(), {Step::kBucket, 1, Verb::kObey, [&] {
                                             reached.set_value();
                                             go_on.get_future().wait();
                                           }});
  ASSERT_TRUE(lend_first_bucket(ring_.handle()).is_ok());
  reached.get_future().wait();
  WorkerChannel::abort(std::move(channel_), aborted("over"), Deadline::after_seconds(2.2),
                       std::make_shared<int>(0));
  EXPECT_TRUE(wait_for_rings(job_, 3, soon(), abort_).is_ok());
  go_on.set_value();
  EXPECT_THAT(worker.wait().raised, HasSubstr("over"));
}

TEST_F(StockChannelTest, ARingOfAGpuStaysAsLongAsItsWorkerReads) {
  std::promise<void> reached;
  std::promise<void> go_on;
  StockWorker worker(channel_->address(), {Step::kBucket, 1, Verb::kObey, [&] {
                                             reached.set_value();
                                             go_on.get_future().wait();
                                           }});
  ASSERT_TRUE(lend_first_bucket(gpu_ring()).is_ok());
  reached.get_future().wait();
  auto memory = std::make_shared<int>(0);
  const std::weak_ptr<int> held = memory;
  // The update has failed because its time was up.
  WorkerChannel::abort(std::move(channel_), deadline_exceeded("time is up"),
                       Deadline::after_seconds(0), std::move(memory));
  EXPECT_TRUE(ring_is_held());
  EXPECT_FALSE(held.expired());
  go_on.set_value();
  EXPECT_THAT(worker.wait().raised, HasSubstr("time is up"));
  EXPECT_TRUE(wait_for_rings(job_, 3, soon(), abort_).is_ok());
  EXPECT_TRUE(held.expired());
}

TEST_F(StockChannelTest, AWorkerThatComesAfterTheAbortIsToldToo) {
  const std::string address = channel_->address();
  WorkerChannel::abort(std::move(channel_), aborted("rank 5 died"), soon());
  StockWorker worker(address);
  const auto outcome = worker.wait();
  EXPECT_FALSE(outcome.returned);
  EXPECT_THAT(outcome.raised, HasSubstr("rank 5 died"));
}

TEST_F(StockChannelTest, AKilledWorkerIsLost) {
  test::RoleProcess worker("stock-worker", {channel_->address(), "die"});
  const Status lost = test::run_pass(*channel_, ring_, abort_).status();
  EXPECT_EQ(lost.code(), StatusCode::kPeerLost);
  EXPECT_THAT(lost.message(), HasSubstr(std::to_string(worker.pid())));
  EXPECT_EQ(worker.wait(), -SIGKILL);
}

TEST_F(StockChannelTest, AStoppedWorkerIsLost) {
  options_.heartbeat_timeout_seconds = 0.5;
  rebind();
  test::RoleProcess worker("stock-worker", {channel_->address(), "stop"});
  const Status lost = test::run_pass(*channel_, ring_, abort_).status();
  EXPECT_EQ(lost.code(), StatusCode::kPeerLost);
  EXPECT_THAT(lost.message(), HasSubstr("stopped answering"));
}

TEST_F(StockChannelTest, AStoppedWorkerKeepsItsRingOfAGpuAndIsToldWhenItGoesOn) {
  options_.heartbeat_timeout_seconds = 1.5;
  rebind();
  test::RoleProcess worker("stock-worker", {channel_->address(), "stop"});
  const Status lost = run_until_lost(gpu_ring());
  EXPECT_THAT(lost.message(), HasSubstr("stopped answering"));
  auto memory = std::make_shared<int>(0);
  const std::weak_ptr<int> held = memory;
  WorkerChannel::abort(std::move(channel_), lost, Deadline::after_seconds(0), std::move(memory));
  EXPECT_TRUE(ring_is_held());
  EXPECT_FALSE(held.expired());
  worker.signal(SIGCONT);
  EXPECT_EQ(worker.read_line(), "raised");
  EXPECT_TRUE(wait_for_rings(job_, 3, soon(), abort_).is_ok());
  EXPECT_TRUE(held.expired());
}

TEST_F(StockChannelTest, AStoppedWorkerThatIsKilledKeepsNothing) {
  options_.heartbeat_timeout_seconds = 1.5;
  rebind();
  test::RoleProcess worker("stock-worker", {channel_->address(), "stop"});
  const Status lost = run_until_lost(gpu_ring());
  auto memory = std::make_shared<int>(0);
  const std::weak_ptr<int> held = memory;
  WorkerChannel::abort(std::move(channel_), lost, Deadline::after_seconds(0), std::move(memory));
  EXPECT_TRUE(ring_is_held());
  worker.signal(SIGKILL);
  EXPECT_TRUE(wait_for_rings(job_, 3, soon(), abort_).is_ok());
  EXPECT_TRUE(held.expired());
}

TEST_F(StockChannelTest, AWorkerThatStopsAfterTheAbortKeepsItsRingOfAGpuToo) {
  options_.heartbeat_timeout_seconds = 1.5;
  rebind();
  test::RoleProcess worker("stock-worker", {channel_->address(), "stop"});
  ASSERT_TRUE(channel_->accept(soon(), abort_).is_ok());
  ASSERT_TRUE(channel_->open_ring(gpu_ring(), soon(), abort_).is_ok());
  for (const std::uint32_t bucket : {0u, 1u}) {
    if (bucket == 1) {
      ASSERT_TRUE(channel_->wait_ack(soon(), abort_).is_ok());
    }
    ASSERT_TRUE(channel_->announce(bucket, ring_.entries(0, 1)).is_ok());
  }
  worker.wait_until_stopped();
  WorkerChannel::abort(std::move(channel_), aborted("over"), Deadline::after_seconds(0),
                       std::make_shared<int>(0));
  EXPECT_EQ(wait_for_rings(job_, 3, Deadline::after_seconds(3), abort_).code(),
            StatusCode::kDeadlineExceeded);
  worker.signal(SIGCONT);
  EXPECT_EQ(worker.read_line(), "raised");
  EXPECT_TRUE(wait_for_rings(job_, 3, soon(), abort_).is_ok());
}

TEST_F(StockChannelTest, ARingOfTheHostIsDroppedAtTheDeadlineAndItsStoppedWorkerStillTold) {
  options_.heartbeat_timeout_seconds = 1.5;
  rebind();
  test::RoleProcess worker("stock-worker", {channel_->address(), "stop"});
  const Status lost = run_until_lost(ring_.handle());
  WorkerChannel::abort(std::move(channel_), lost, Deadline::after_seconds(0),
                       std::make_shared<int>(0));
  EXPECT_TRUE(wait_for_rings(job_, 3, soon(), abort_).is_ok());
  EXPECT_EQ(wait_for_closers(job_, Deadline::after_seconds(0.3)).code(),
            StatusCode::kDeadlineExceeded);
  worker.signal(SIGCONT);
  EXPECT_EQ(worker.read_line(), "raised");
  EXPECT_TRUE(wait_for_closers(job_, soon()).is_ok());
}

TEST_F(StockChannelTest, ARingThatNobodyHasOpenedGoesAtOnce) {
  options_.late_worker_seconds = 2;
  rebind();
  WorkerChannel::abort(std::move(channel_), aborted("over"), soon(), std::make_shared<int>(0));
  EXPECT_TRUE(wait_for_rings(job_, 3, Deadline::after_seconds(1), abort_).is_ok());
  EXPECT_TRUE(wait_for_closers(job_, soon()).is_ok());
}

TEST_F(StockChannelTest, AStoppedWorkerThatIsCutIsToldWhenItGoesOn) {
  options_.late_worker_seconds = 0.5;
  rebind();  // the heartbeats would need longer than the deadline to find it
  test::RoleProcess worker("stock-worker", {channel_->address(), "stop"});
  ASSERT_TRUE(lend_first_bucket(ring_.handle()).is_ok());
  ASSERT_TRUE(channel_->wait_ack(soon(), abort_).is_ok());
  ASSERT_TRUE(channel_->announce(1, ring_.entries(1, 2)).is_ok());
  worker.wait_until_stopped();
  WorkerChannel::abort(std::move(channel_), aborted("over"), Deadline::after_seconds(0),
                       std::make_shared<int>(0));
  EXPECT_TRUE(wait_for_rings(job_, 3, soon(), abort_).is_ok());
  EXPECT_EQ(wait_for_closers(job_, Deadline::after_seconds(1.5)).code(),
            StatusCode::kDeadlineExceeded);
  worker.signal(SIGCONT);
  EXPECT_EQ(worker.read_line(), "raised");
  EXPECT_TRUE(wait_for_closers(job_, soon()).is_ok());
}

TEST_F(StockChannelTest, ARescueFreesTheWorkerOfAKilledRank) {
  for (const Verb verb : {Verb::kObey, Verb::kHang}) {
    test::RoleProcess rank("rank", {test::unique_job(), "die"});
    const std::string address = rank.read_line();
    std::promise<void> go_on;
    StockWorker worker(address, {Step::kBucket, 1, Verb::kObey, [&, verb] {
                                   if (verb == Verb::kHang) go_on.get_future().wait();
                                 }});
    EXPECT_EQ(rank.wait(), -SIGKILL);
    ASSERT_TRUE(rescue_worker("job", address, 3, peer_lost("rank 3 was killed"), soon()).is_ok());
    go_on.set_value();
    EXPECT_THAT(worker.wait().raised, HasSubstr("rank 3 was killed"));
  }
}

TEST_F(StockChannelTest, ALivingRankIsNotRescued) {
  EXPECT_EQ(rescue_worker("job", channel_->address(), 3, peer_lost("dead?"), soon()).code(),
            StatusCode::kAlreadyExists);
}

TEST_F(StockChannelTest, SomebodyWhoDoesNotSpeakZeroMqIsNotWaitedForForEver) {
  const UniqueFd stranger = *connect_abstract(channel_->address());
  const auto hello = channel_->accept(Deadline::after_seconds(0.1), abort_);
  EXPECT_THAT(hello.status().message(), HasSubstr("does not speak ZeroMQ"));
}

TEST_F(StockChannelTest, SomebodyWhoDoesNotSpeakZeroMqMakesRoomForTheWorker) {
  options_.handshake_timeout_seconds = 0.2;
  rebind();
  const UniqueFd stranger = *connect_abstract(channel_->address());
  StockWorker worker(channel_->address());
  const auto pass = test::run_pass(*channel_, ring_, abort_);
  EXPECT_TRUE(pass.is_ok()) << pass.status().to_string();
  EXPECT_TRUE(worker.wait().returned);
}

TEST_F(StockChannelTest, AfterAnAbortSomebodyWhoDoesNotSpeakZeroMqMakesRoomToo) {
  options_.handshake_timeout_seconds = 0.2;
  rebind();
  const std::string address = channel_->address();
  const UniqueFd stranger = *connect_abstract(address);
  WorkerChannel::abort(std::move(channel_), aborted("rank 5 died"), soon());
  StockWorker worker(address);
  EXPECT_THAT(worker.wait().raised, HasSubstr("rank 5 died"));
}

TEST_F(StockChannelTest, SomebodyWhoLeavesAtOnceIsForgotten) {
  (*connect_abstract(channel_->address())).reset();
  StockWorker worker(channel_->address());
  EXPECT_TRUE(test::run_pass(*channel_, ring_, abort_).is_ok());
  EXPECT_TRUE(worker.wait().returned);
}

TEST(PeerTest, OnlyTheSameUserIsLetIn) {
  EXPECT_TRUE(check_same_user({1, 1000}, 1000).is_ok());
  const Status other = check_same_user({77, 1001}, 1000);
  EXPECT_EQ(other.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.message(), AllOf(HasSubstr("77"), HasSubstr("1001"), HasSubstr("1000")));
  EXPECT_FALSE(check_same_user({1, 0}, 1000).is_ok());
}

}  // namespace
}  // namespace ckpt
