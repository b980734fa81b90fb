#include "parameter_server/memory_guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/host.h"
#include "base/shared_memory.h"
#include "base/strings.h"

namespace ckpt {
namespace {

/// Another process that uses the memory of `guard`, as soon as this is made.
class User {
 public:
  explicit User(const std::string& guard) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto use = MemoryUse::begin(guard);
      const char answer = use.is_ok() ? 'y' : 'n';
      if (::write(ready[1], &answer, 1) == 1) ::pause();
      ::_exit(0);
    }
    char answer = '?';
    EXPECT_EQ(::read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~User() { kill(); }
  User(const User&) = delete;
  User& operator=(const User&) = delete;

  void stop() {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    ::waitpid(pid_, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

class MemoryGuardTest : public testing::Test {
 protected:
  const std::string name_ = concat("ckpt-guard-test-", random_id());
  MemoryGuard guard_ = *MemoryGuard::create(name_);
};

TEST_F(MemoryGuardTest, IsInUseUntilTheLastUseEnds) {
  auto first = *MemoryUse::begin(name_), second = *MemoryUse::begin(name_);
  EXPECT_TRUE(guard_.in_use());
  first = MemoryUse();
  EXPECT_TRUE(guard_.in_use());
  second = MemoryUse();
  EXPECT_FALSE(guard_.in_use());
  EXPECT_FALSE(guard_.in_use()) << "it stays so";
}

TEST_F(MemoryGuardTest, NobodyJoinsOnceTheOwnerHasAsked) {
  const auto first = *MemoryUse::begin(name_);
  EXPECT_TRUE(guard_.in_use());
  EXPECT_EQ(MemoryUse::begin(name_).status().code(), StatusCode::kAborted);
  EXPECT_FALSE(std::filesystem::exists(concat("/dev/shm/", name_)));
}

TEST_F(MemoryGuardTest, AUseThatIsMovedIsOne) {
  auto first = *MemoryUse::begin(name_);
  {
    const MemoryUse moved = std::move(first);
    EXPECT_TRUE(guard_.in_use());
  }
  EXPECT_FALSE(guard_.in_use());
}

TEST_F(MemoryGuardTest, AProcessThatIsStoppedUsesItAndOneThatIsKilledDoesNot) {
  User user(name_);
  EXPECT_TRUE(guard_.in_use());
  user.stop();
  EXPECT_TRUE(guard_.in_use());
  user.kill();
  EXPECT_FALSE(guard_.in_use());
}

TEST_F(MemoryGuardTest, AChildOfTheUserDoesNotKeepIt) {
  auto use = std::make_unique<MemoryUse>(*MemoryUse::begin(name_));
  int held[2];
  ASSERT_EQ(::pipe(held), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char end = 0;
    ::close(held[1]);
    if (::read(held[0], &end, 1) < 0) ::_exit(1);
    ::_exit(0);
  }
  EXPECT_TRUE(guard_.in_use());
  use.reset();
  EXPECT_FALSE(guard_.in_use());
  ::close(held[0]);
  ::close(held[1]);
  ::waitpid(child, nullptr, 0);
}

TEST_F(MemoryGuardTest, IsNotTakenForAbandonedUnlessItsOwnerDied) {
  EXPECT_EQ(SharedMemory::remove_abandoned(name_), 0);
  EXPECT_TRUE(MemoryUse::begin(name_).is_ok());
  const std::string other = name_ + "-killed";
  const pid_t child = ::fork();
  if (child == 0) {
    const auto guard = MemoryGuard::create(other);
    if (guard.is_ok()) ::raise(SIGKILL);
    ::_exit(1);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(std::filesystem::exists(concat("/dev/shm/", other)));
  EXPECT_EQ(SharedMemory::remove_abandoned(name_), 1);
  EXPECT_TRUE(std::filesystem::exists(concat("/dev/shm/", name_)));
}

TEST_F(MemoryGuardTest, ItsNameGoesWithIt) {
  EXPECT_TRUE(std::filesystem::exists(concat("/dev/shm/", name_)));
  { const MemoryGuard last = std::move(guard_); }
  EXPECT_FALSE(std::filesystem::exists(concat("/dev/shm/", name_)));
  EXPECT_EQ(MemoryUse::begin(name_).status().code(), StatusCode::kAborted);
}

}  // namespace
}  // namespace ckpt
