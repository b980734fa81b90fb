// What other jobs may read of a job that is being filled, and when.
#include "parameter_server/offer_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <span>
#include <thread>

#include "plan/test_topology.h"
#include "transport/testing/fake_network.h"

namespace ckpt {
namespace {

constexpr int kOwner = 1;  // of another job; rank 0 is filled

Deadline soon() { return Deadline::after_seconds(30); }

PlanOptions small_buckets() {
  PlanOptions options;
  options.ring_bytes = 64 << 10;
  options.bucket_bytes = 8192;
  options.chunk_bytes = 2048;
  options.cross_chunk_bytes = 1024;
  return options;
}

/// Rank 0, whose ring is large enough for everything, and whose bytes arrive when a test says so.
class OfferedWhileItIsFilled : public ::testing::Test {
 protected:
  OfferedWhileItIsFilled() {
    for (std::size_t i = 0; i < ring_.size(); ++i) ring_[i] = std::byte(i * 7 + i / 256);
  }

  void start() {
    auto made = OfferLane::create(
        {catalog_, plan_, progress_, arriving_, ring_.data(), *copy_, *device_->make_stream()});
    ASSERT_TRUE(made.is_ok());
    lane_ = std::move(made).value();
    outcome_ = std::async(std::launch::async, [this] { return lane_->run(soon(), abort_); });
  }
  Status finish() {
    Status status = outcome_.get();
    lane_.reset();
    return status;
  }
  void arrive(std::size_t chunks) { progress_.publish(arriving_[0].slot, chunks); }
  void wait_until_offered(std::uint64_t bytes) const {
    const Deadline deadline = soon();
    while (copy_->offered() < bytes && !deadline.expired()) std::this_thread::yield();
    EXPECT_GE(copy_->offered(), bytes);
  }
  Status confirm(std::uint32_t bucket, bool checked = true) {
    return lane_->confirm(bucket, checked, soon(), abort_);
  }

  /// What a reader finds in the pool, beside what the ring holds of each tensor.
  void expect_readable() {
    const auto reader = network_.make_transport("reader");
    const InstanceData data = *copy_->instance_data();
    const auto peer = *reader->connect(data.transport_descriptor, {}, soon());
    for (const BucketTensor& tensor : plan_.tensors) {
      const TensorInfo& info = *catalog_.tensors()[tensor.tensor].info;
      const auto& held = copy_->layout()->tensors;
      const auto at = static_cast<std::size_t>(
          std::ranges::find(held, info.name, &TensorInfo::name) - held.begin());
      ASSERT_LT(at, held.size());
      std::vector<std::byte> read(info.bytes);
      const ReadRange range{data.pool_regions[0].region, data.offsets[at], read.data(), info.bytes};
      ASSERT_TRUE(reader->read(*peer, {&range, 1}, soon())->wait(soon()).is_ok());
      EXPECT_TRUE(
          std::ranges::equal(read, std::span(ring_).subspan(tensor.ring_offset, info.bytes)))
          << info.name;
    }
  }

  const std::shared_ptr<Device> device_ = make_host_device();
  testing::FakeNetwork network_;
  const std::shared_ptr<Transport> transport_ = network_.make_transport("rank 0");
  LeaseTable leases_;
  SharedPool shared_pool_;
  PoolReclaimer reclaimer_;
  AbortSignal abort_;
  const Catalog catalog_ = testing::make_catalog({{},
                                                  {{"model.layers.0.weight", 5000},
                                                   {"model.layers.0.bias", 0},
                                                   {"model.layers.1.weight", 2900},
                                                   {"model.layers.2.weight", 4000},
                                                   {"model.layers.3.weight", 3000}}});
  const std::vector<PlanRank> ranks_ = {{.host = 0, .recipient = true}, {.host = 1}};
  const Plan plan_ = *make_plan(catalog_, ranks_, small_buckets());
  const Schedule schedule_ = make_schedule(plan_, ranks_, 0);
  const HostProgressLayout layout_{{0}, {}};
  Progress progress_ = *Progress::create_private(layout_.slots());
  const Schedule* const schedules_[1] = {&schedule_};
  const std::vector<ArrivingChunk> arriving_ = arriving_chunks(schedules_, layout_, 0);
  std::vector<std::byte> ring_ = std::vector<std::byte>(64 << 10);
  const std::unique_ptr<OfferedCopy> copy_ = *OfferedCopy::create(
      catalog_, 1,
      {*device_, transport_.get(), leases_, shared_pool_, reclaimer_, 0, 7, "host", {}, 1, 30, 1});
  std::unique_ptr<OfferLane> lane_;
  std::future<Status> outcome_;
};

TEST_F(OfferedWhileItIsFilled, ReadersFollowByChunksAndNotByBuckets) {
  ASSERT_EQ(plan_.buckets.size(), 2u);
  ASSERT_EQ(arriving_.size(), schedule_.receive.size());
  start();
  EXPECT_EQ(copy_->offered(), 0u);
  arrive(1);
  wait_until_offered(1024);
  EXPECT_EQ(copy_->offered(), 1024u);
  arrive(3);
  wait_until_offered(3072);
  arrive(arriving_.size());
  ASSERT_TRUE(confirm(0).is_ok());
  wait_until_offered(5120 + 3072 + 4096 + 3000);
  EXPECT_NE(copy_->offered(), kWhollyFilled) << "the worker has not checked the second bucket";
  ASSERT_TRUE(confirm(1).is_ok());
  EXPECT_TRUE(copy_->whole());
  EXPECT_EQ(copy_->offered(), kWhollyFilled);
  EXPECT_EQ(lane_->bytes(), catalog_.total_bytes());
  ASSERT_TRUE(finish().is_ok());
  expect_readable();
}

TEST_F(OfferedWhileItIsFilled, WhatNoWorkerHasCheckedIsTakenBackAndCopiedAgain) {
  start();
  arrive(arriving_.size());
  ASSERT_TRUE(confirm(0).is_ok());
  wait_until_offered(5120 + 3072 + 4096 + 3000);
  ASSERT_TRUE(finish().is_ok());  // the update fails before the second bucket is acknowledged
  EXPECT_EQ(copy_->offered(), 5120u + 3072u);
  EXPECT_FALSE(copy_->whole());

  for (std::size_t i = plan_.buckets[1].ring_offset; i < ring_.size(); ++i)
    ring_[i] ^= std::byte{1};
  start();
  ASSERT_TRUE(confirm(0).is_ok());
  ASSERT_TRUE(confirm(1).is_ok());
  EXPECT_EQ(lane_->bytes(), 7000u) << "what was checked is not copied again";
  ASSERT_TRUE(finish().is_ok());
  EXPECT_EQ(copy_->offered(), kWhollyFilled);
  expect_readable();
}

TEST_F(OfferedWhileItIsFilled, WhatNoWorkerHasCheckedIsCheckedHere) {
  start();
  arrive(arriving_.size());
  const Status refused = confirm(0, false);  // the catalog's digests are made up
  EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("\"model.layers.0.weight\" of 5000 bytes"));
  ASSERT_TRUE(finish().is_ok());
  EXPECT_EQ(copy_->offered(), 0u);
}

TEST_F(OfferedWhileItIsFilled, AnAbortEndsItWhereItWaits) {
  start();
  arrive(2);
  abort_.raise(aborted("enough"));
  EXPECT_EQ(confirm(0).code(), StatusCode::kAborted);
  EXPECT_EQ(finish().code(), StatusCode::kAborted);
  EXPECT_EQ(copy_->offered(), 0u);
}

TEST(ArrivingChunks, AreThoseOfAllRanksThatShareTheRing) {
  const Catalog catalog = testing::make_catalog(
      {{}, {}, {{"model.layers.0.weight", 5000}}, {{"model.layers.1.weight", 3000}}});
  const std::vector<PlanRank> ranks = {
      {.host = 0, .recipient = true}, {.host = 0, .recipient = true}, {.host = 1}, {.host = 2}};
  for (const RingSharing sharing : {RingSharing::kPerHost, RingSharing::kPerRank}) {
    PlanOptions options = small_buckets();
    options.sharing = sharing;
    const Plan plan = *make_plan(catalog, ranks, options);
    const Schedule first = make_schedule(plan, ranks, 0), second = make_schedule(plan, ranks, 1);
    const Schedule* const schedules[] = {&first, &second};
    const HostProgressLayout layout{{0, 1}, {}};
    for (const int rank : {0, 1}) {
      const auto arriving = arriving_chunks(schedules, layout, rank);
      std::uint64_t bytes = 0;
      std::map<std::uint32_t, std::uint64_t> end;  // of each part
      for (const ArrivingChunk& each : arriving) {
        EXPECT_EQ(each.chunk.part_offset, end[each.chunk.part]) << "from the beginning of the part";
        end[each.chunk.part] += each.chunk.bytes;
        bytes += each.chunk.bytes;
        EXPECT_EQ(each.slot == layout.pulled_total(rank), sharing == RingSharing::kPerRank);
      }
      EXPECT_EQ(bytes, 8000u);
    }
  }
}

}  // namespace
}  // namespace ckpt
