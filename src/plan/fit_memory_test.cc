#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/test_topology.h"

namespace ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::make_catalog;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kGiB = 1 << 30;
constexpr std::uint64_t kPlenty = 100 * kGiB;

Catalog catalog_of(std::vector<std::uint64_t> sizes) {
  std::vector<testing::TestTensor> tensors;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    tensors.push_back({testing::name_in_group(static_cast<int>(i), 0), sizes[i]});
  }
  return make_catalog({tensors});
}

const MemoryRequest kPerRankRequest{.sharing = RingSharing::kPerRank};

TEST(FitMemory, TakesTheDefaultsWhereThereIsPlenty) {
  const auto options = fit_memory(catalog_of({3 * kGiB / 4, 3 * kGiB / 4}), {}, kPlenty);
  ASSERT_TRUE(options.is_ok());
  EXPECT_EQ(options->ring_bytes, kGiB);
  EXPECT_EQ(options->bucket_bytes, kGiB / 2);
  EXPECT_FALSE(options->serial);
  EXPECT_EQ(options->staging_chunks, 0) << "one ring for the host has no staging";
  EXPECT_EQ(fit_memory(catalog_of({2 * kGiB}), kPerRankRequest, kPlenty)->staging_chunks, 4);
}

TEST(FitMemory, WithoutOverlapTheRingHoldsOneBucket) {
  MemoryRequest request = kPerRankRequest;
  request.overlap = false;
  const auto options = fit_memory(catalog_of({kGiB / 4, kGiB}), request, kPlenty);
  EXPECT_TRUE(options->serial);
  EXPECT_EQ(options->ring_bytes, kGiB) << "the largest tensor";
  EXPECT_EQ(options->staging_chunks, 4);
  request.bucket_bytes = kGiB / 2;
  const auto smaller = fit_memory(catalog_of({kGiB / 4, kGiB / 4, kGiB / 4}), request, kPlenty);
  EXPECT_EQ(smaller->ring_bytes, smaller->bucket_bytes);
  EXPECT_EQ(smaller->ring_bytes, kGiB / 2);
}

TEST(FitMemory, GivesNoMoreThanTheCheckpointFills) {
  const auto options = fit_memory(catalog_of({kMiB, kMiB, kMiB, 100}), {}, kPlenty);
  EXPECT_EQ(options->ring_bytes, 3 * kMiB + 256);
}

TEST(FitMemory, CutsSmallBucketsIntoSmallerChunks) {
  EXPECT_EQ(fit_memory(catalog_of({2 * kGiB}), {}, kPlenty)->chunk_bytes, 32 * kMiB);
  const Catalog catalog = catalog_of(std::vector<std::uint64_t>(256, kMiB));
  EXPECT_EQ(fit_memory(catalog, {}, kPlenty)->chunk_bytes, 8 * kMiB) << "a sixteenth of a bucket";
  EXPECT_EQ(fit_memory(catalog_of({kMiB, kMiB}), {}, kPlenty)->chunk_bytes, 4 * kMiB);
}

TEST(FitMemory, TakesSizesAsGiven) {
  const Catalog catalog = catalog_of({kMiB});
  const auto by_bucket = fit_memory(catalog, {.bucket_bytes = 300 * kMiB}, kPlenty);
  EXPECT_EQ(by_bucket->ring_bytes, 600 * kMiB);
  EXPECT_EQ(by_bucket->bucket_bytes, 300 * kMiB);
  const auto by_ring =
      fit_memory(catalog, {.ring_bytes = 500 * kMiB, .bucket_bytes = 300 * kMiB}, kPlenty);
  EXPECT_EQ(by_ring->ring_bytes, 500 * kMiB);
  EXPECT_EQ(by_ring->bucket_bytes, 250 * kMiB) << "two buckets must fit";
}

TEST(FitMemory, RoundsToStepsOfTheRing) {
  const auto options = fit_memory(
      catalog_of({1}), {.ring_bytes = 10001, .bucket_bytes = 999, .chunk_bytes = 1000}, kPlenty);
  EXPECT_EQ(options->ring_bytes, 9984u);
  EXPECT_EQ(options->bucket_bytes, 1024u);
  EXPECT_EQ(options->chunk_bytes, 1024u);
  EXPECT_EQ(options->cross_chunk_bytes, 1024u) << "not larger than a chunk on a host";
}

TEST(FitMemory, GrowsToTheLargestTensor) {
  const auto options = fit_memory(catalog_of({5, 3 * kGiB}), {.ring_bytes = kMiB}, kPlenty);
  EXPECT_EQ(options->ring_bytes, 3 * kGiB);
}

TEST(FitMemory, ShrinksTheRingFirst) {
  const auto options = fit_memory(catalog_of({kGiB, 5}), kPerRankRequest, kGiB + 200 * kMiB);
  ASSERT_TRUE(options.is_ok());
  EXPECT_EQ(options->ring_bytes, kGiB);
  const auto smaller = fit_memory(catalog_of(std::vector<std::uint64_t>(64, 32 * kMiB)),
                                  kPerRankRequest, 512 * kMiB);
  EXPECT_EQ(smaller->ring_bytes, 384 * kMiB);
  EXPECT_EQ(smaller->bucket_bytes, 192 * kMiB);
  EXPECT_EQ(smaller->staging_chunks, 4);
}

TEST(FitMemory, ThenGivesUpStagingAndOverlap) {
  const auto options =
      fit_memory(catalog_of({300 * kMiB, 500 * kMiB}), kPerRankRequest, 600 * kMiB);
  ASSERT_TRUE(options.is_ok());
  EXPECT_TRUE(options->serial);
  EXPECT_EQ(options->staging_chunks, 0);
  EXPECT_EQ(options->ring_bytes, 600 * kMiB);
  EXPECT_EQ(options->bucket_bytes, 600 * kMiB);
}

TEST(FitMemory, ThenNamesTheTensorAndTheMemory) {
  const auto options = fit_memory(catalog_of({3, 700 * kMiB}), kPerRankRequest, 600 * kMiB);
  ASSERT_FALSE(options.is_ok());
  EXPECT_EQ(options.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(options.status().message(), AllOf(HasSubstr("experts.1.w0"), HasSubstr("700.00 MiB"),
                                                HasSubstr("600.00 MiB"), HasSubstr("rank 0")));
}

TEST(FitMemory, SurvivesAbsurdNumbers) {
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  const Catalog catalog = catalog_of({1000});
  const auto options =
      fit_memory(catalog, {kHuge, kHuge, kHuge, kHuge, 1 << 30, RingSharing::kPerRank}, kGiB);
  ASSERT_TRUE(options.is_ok()) << options.status().to_string();
  EXPECT_LE(options->ring_bytes, kGiB);
  EXPECT_FALSE(fit_memory(catalog, {}, 0).is_ok());
  EXPECT_FALSE(fit_memory(make_catalog({{}}), {}, 0).is_ok());
  EXPECT_FALSE(fit_memory(catalog, {.chunk_bytes = 0}, kGiB).is_ok());
  EXPECT_FALSE(fit_memory(catalog, {.staging_chunks = 1}, kGiB).is_ok());
}

TEST(FitMemory, GivesWhatThePlannerTakes) {
  for (const std::uint64_t available : {512ull, 700ull, 1024ull, 4096ull, 70000ull}) {
    for (const RingSharing sharing : {RingSharing::kPerHost, RingSharing::kPerRank}) {
      const Catalog catalog = catalog_of({500, 100, 0, 1, 300, 512});
      const auto options = fit_memory(catalog, {.chunk_bytes = 256, .sharing = sharing}, available);
      ASSERT_TRUE(options.is_ok()) << options.status().to_string();
      EXPECT_LE(options->ring_bytes + options->staging_chunks * options->chunk_bytes, available);
      const auto plan = make_plan(catalog, testing::make_ranks(1, 2), *options);
      EXPECT_TRUE(plan.is_ok()) << plan.status().to_string();
    }
  }
}

}  // namespace
}  // namespace ckpt
