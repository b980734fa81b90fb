#include "collective/host_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace ckpt {
namespace {

using ::testing::HasSubstr;

TEST(HostProgressLayout, EverySlotHasOneWriter) {
  const std::vector<int> ranks{1, 4, 6};
  const std::vector<Link> links{{1, 2}, {1, 3}, {6, 2}};
  const HostProgressLayout layout(ranks, links);
  std::vector<Progress::Slot> all;
  for (const int rank : ranks) {
    all.insert(all.end(), {layout.acknowledged(rank), layout.pulled_total(rank)});
    for (const StreamKind kind : {StreamKind::kFill, StreamKind::kReceive}) {
      all.push_back(layout.stream(rank, kind));
      for (const int source : ranks) all.push_back(layout.pulled(rank, source, kind));
    }
  }
  for (const Link& link : links) all.push_back(layout.forwarded(link));
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), all.size());
  for (const Progress::Slot slot : all) EXPECT_LT(slot, layout.slots());
}

/// Buckets 0 and 1 lie side by side, bucket 2 takes the space of both. Rank 0 gives the first to
/// rank 2, the second to rank 3.
struct Job {
  Plan plan;
  Schedule schedule;
  std::unique_ptr<HostProgressLayout> layout;
  std::unique_ptr<Progress> progress;
  AbortSignal abort;

  Job() {
    plan.buckets.resize(3);
    for (Bucket& bucket : plan.buckets) bucket.reuse_after = -1;
    plan.buckets[2].reuse_after = 1;
    schedule.buckets.resize(3);
    schedule.buckets[0].forwarded = {{0, 2, 5}};
    schedule.buckets[1].forwarded = {{0, 3, 4}};
    schedule.buckets[1].pulled = 9;
    layout = std::make_unique<HostProgressLayout>(std::vector<int>{0, 1}, links_of(schedule));
    progress = std::make_unique<Progress>(std::move(*Progress::create_private(layout->slots())));
  }
  RingCredits credits(RingReaders readers) {
    return RingCredits(plan, schedule, *layout, *progress, std::move(readers));
  }
};

TEST(RingCredits, ABucketWaitsForEveryReaderOfAllThatLayThere) {
  Job job;
  const RingCredits credits = job.credits({{0, 1}, {1}});
  EXPECT_TRUE(credits.is_free(0));
  EXPECT_TRUE(credits.is_free(1));
  const std::vector<std::pair<Progress::Slot, std::uint64_t>> needs = {
      {job.layout->acknowledged(0), 2},
      {job.layout->acknowledged(1), 2},
      {job.layout->pulled_total(1), 9},
      {job.layout->forwarded({0, 2}), 5},
      {job.layout->forwarded({0, 3}), 4}};
  for (const auto& [slot, target] : needs) {
    job.progress->publish(slot, target - 1);
    EXPECT_FALSE(credits.is_free(2));
    EXPECT_EQ(credits.wait(2, Deadline::after_seconds(0), job.abort).code(),
              StatusCode::kDeadlineExceeded);
    job.progress->publish(slot, target);
  }
  EXPECT_TRUE(credits.is_free(2));
  EXPECT_TRUE(credits.wait(2, Deadline::after_seconds(0), job.abort).is_ok());
}

TEST(RingCredits, TheErrorSaysWhoIsLate) {
  Job job;
  const RingCredits credits = job.credits({{0, 1}, {}});
  job.progress->publish(job.layout->acknowledged(0), 3);
  job.progress->publish(job.layout->acknowledged(1), 1);
  EXPECT_THAT(credits.wait(2, Deadline::after_seconds(0), job.abort).message(),
              HasSubstr("only 1 of 2 buckets were loaded by the worker of rank 1"));
  job.progress->publish(job.layout->acknowledged(1), 3);
  job.progress->publish(job.layout->forwarded({0, 3}), 4);
  job.progress->publish(job.layout->forwarded({0, 2}), 3);
  EXPECT_THAT(credits.wait(2, Deadline::after_seconds(0), job.abort).message(),
              HasSubstr("only 3 of 5 chunks were taken by rank 2"));
}

}  // namespace
}  // namespace ckpt
