#include "worker/lost_worker.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace ckpt {
namespace {

struct Ends {
  UniqueFd rank, worker;
};

Ends connection() {
  std::array<int, 2> fds{-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

TEST(LostWorkerTest, MayGoOnUntilItClosesItsEnd) {
  Ends ends = connection();
  LostWorker worker(::getpid(), std::move(ends.rank), 0);
  EXPECT_TRUE(worker.may_go_on());
  ends.worker.reset();
  EXPECT_FALSE(worker.may_go_on());
}

TEST(LostWorkerTest, OfAnotherPidNamespaceIsKnownByItsConnectionAlone) {
  Ends ends = connection();
  LostWorker worker(0, std::move(ends.rank), 0);
  EXPECT_TRUE(worker.may_go_on());
  ends.worker.reset();
  EXPECT_FALSE(worker.may_go_on());
}

TEST(LostWorkerTest, HasTimeToReturnWhereNothingTellsOfIt) {
  LostWorker gone(0, UniqueFd(), 0);
  EXPECT_FALSE(gone.may_go_on());
  LostWorker late(0, UniqueFd(), 60);
  EXPECT_TRUE(late.may_go_on());
}

}  // namespace
}  // namespace ckpt
