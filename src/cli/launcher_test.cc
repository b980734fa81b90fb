#include "cli/launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/deadline.h"
#include "base/strings.h"
#include "cli/text_file.h"

namespace ckpt {
namespace {

using testing::HasSubstr;

/// Ranks are shell scripts; each test has a folder of its own.
class LauncherTest : public testing::Test {
 protected:
  LauncherTest() { std::filesystem::create_directories(folder_); }
  ~LauncherTest() override { std::filesystem::remove_all(folder_); }

  LaunchOptions script(const std::string& text, int ranks = 3) {
    LaunchOptions options;
    options.argv = {"/bin/sh", "-c", text};
    options.ranks = ranks;
    options.environment = {"DIR=" + folder_};
    options.grace_seconds = 5;
    return options;
  }
  int launch(const LaunchOptions& options) {
    StopSignals signals(/*children=*/true);
    const auto code = launch_ranks(options, signals);
    EXPECT_TRUE(code.is_ok()) << code.status().message();
    return code ? *code : -1;
  }
  bool exists(const std::string& name) const {
    return std::filesystem::exists(folder_ + "/" + name);
  }
  void wait_for(const std::string& name) const {
    const Deadline deadline = Deadline::after_seconds(10);
    while (!exists(name) && !deadline.expired()) ::usleep(1000);
    ASSERT_TRUE(exists(name)) << name;
  }

  const std::string folder_ = concat("/tmp/ckpt-launcher-", ::getpid(), "-",
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(LauncherTest, EveryRankKnowsItsPlace) {
  auto options = script("echo $RANK/$WORLD_SIZE/$LOCAL_RANK/$MORE > $DIR/$RANK");
  options.environment.push_back("MORE=x=y");
  EXPECT_EQ(launch(options), 0);
  EXPECT_EQ(*read_text_file(folder_ + "/0"), "0/3/0/x=y\n");
  EXPECT_EQ(*read_text_file(folder_ + "/2"), "2/3/2/x=y\n");
}

TEST_F(LauncherTest, TheFirstFailureIsTheExitCode) {
  // Rank 2 fails first; the others fail because of it.
  EXPECT_EQ(launch(script("if [ $RANK = 2 ]; then touch $DIR/failed; exit 7; fi; "
                          "while ! [ -e $DIR/failed ]; do sleep 0.01; done; sleep 0.3; exit 3")),
            7);
}

TEST_F(LauncherTest, ASignalBehindAFailureDoesNotHideIt) {
  StopSignals signals(/*children=*/true);
  std::jthread impatient([this] {
    wait_for("failed");
    const pid_t rank_1 = std::stoi(*read_text_file(folder_ + "/failed"));
    const Deadline deadline = Deadline::after_seconds(10);
    while (::kill(rank_1, 0) == 0 && !deadline.expired()) ::usleep(1000);  // not reaped yet
    ::kill(::getpid(), SIGTERM);
  });
  const auto code =
      launch_ranks(script("if [ $RANK = 1 ]; then "
                          "until [ -e $DIR/ready-0 ] && [ -e $DIR/ready-2 ]; do sleep 0.01; done; "
                          "echo $$ > $DIR/x; mv $DIR/x $DIR/failed; exit 7; fi; "
                          "trap 'touch $DIR/told-$RANK; exit 0' TERM; touch $DIR/ready-$RANK; "
                          "while :; do sleep 0.01; done"),
                   signals);
  ASSERT_TRUE(code.is_ok());
  EXPECT_EQ(*code, 7);
  EXPECT_TRUE(exists("told-0"));
  EXPECT_TRUE(exists("told-2"));
}

TEST_F(LauncherTest, AKilledRankIsASignalsExitCode) {
  EXPECT_EQ(launch(script("if [ $RANK = 1 ]; then kill -9 $$; fi")), 128 + SIGKILL);
}

TEST_F(LauncherTest, OthersMayReportBeforeTheyAreEnded) {
  EXPECT_EQ(launch(script("if [ $RANK = 0 ]; then exit 1; fi; sleep 0.2; touch $DIR/said-$RANK")),
            1);
  EXPECT_TRUE(exists("said-1"));
  EXPECT_TRUE(exists("said-2"));
}

TEST_F(LauncherTest, OnesThatGoOnAreEndedInTheEnd) {
  auto options = script("if [ $RANK = 0 ]; then exit 4; fi; trap '' TERM; sleep 100 & wait; wait");
  options.grace_seconds = 0.2;
  EXPECT_EQ(launch(options), 4);
}

TEST_F(LauncherTest, SignalsAreForwarded) {
  const std::string text =
      "trap 'touch $DIR/got-$RANK; exit 0' INT TERM HUP; touch $DIR/ready-$RANK; "
      "while :; do sleep 0.01; done";
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    std::thread sender;
    StopSignals signals(/*children=*/true);
    sender = std::thread([&] {
      for (int rank = 0; rank < 3; ++rank) wait_for(concat("ready-", rank));
      ::kill(::getpid(), signal);
    });
    const auto code = launch_ranks(script(text), signals);
    sender.join();
    ASSERT_TRUE(code.is_ok());
    EXPECT_EQ(*code, 128 + signal);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(exists(concat("got-", rank)));
      std::filesystem::remove(concat(folder_, "/ready-", rank));
      std::filesystem::remove(concat(folder_, "/got-", rank));
    }
  }
}

TEST_F(LauncherTest, LinesOfOtherRanksHaveTheirNumber) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch(script("echo out; printf 'no end' >&2")), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "out\n");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("rank 1: out\n"));
  EXPECT_THAT(text, HasSubstr("rank 2: no end\n"));
}

TEST_F(LauncherTest, MuchOutputDoesNotBlockARank) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch(script("if [ $RANK = 1 ]; then head -c 1000000 /dev/zero | tr '\\0' x; fi")), 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr().size(), 1'000'000u + sizeof("rank 1: "));
}

TEST_F(LauncherTest, AProgramThatIsNotThereFails) {
  auto options = script("");
  options.argv = {"/nonexistent"};
  EXPECT_EQ(launch(options), 127);
}

TEST_F(LauncherTest, NoRankOutlivesALauncherThatIsKilled) {
  const pid_t launcher = ::fork();
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    StopSignals signals(/*children=*/true);
    const auto code = launch_ranks(
        script("echo $$ > $DIR/pid.$RANK; mv $DIR/pid.$RANK $DIR/pid-$RANK; exec sleep 100"),
        signals);
    ::_exit(code ? *code : 99);
  }
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    wait_for(concat("pid-", rank));
    ranks.push_back(std::stoi(*read_text_file(concat(folder_, "/pid-", rank))));
  }
  ::kill(launcher, SIGKILL);
  ASSERT_EQ(::waitpid(launcher, nullptr, 0), launcher);
  const auto gone = [](pid_t pid) {
    const auto state = read_text_file(concat("/proc/", pid, "/stat"));
    return !state || state->find(") Z ") != std::string::npos;
  };
  const Deadline deadline = Deadline::after_seconds(10);
  for (const pid_t rank : ranks) {
    while (!gone(rank) && !deadline.expired()) ::usleep(1000);
    EXPECT_TRUE(gone(rank));
  }
}

}  // namespace
}  // namespace ckpt
