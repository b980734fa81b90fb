#include "parameter_server/joined_metas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"
#include "parameter_server/foreign_owners.h"
#include "parameter_server/metas_json.h"
#include "transport/descriptor.h"

namespace ckpt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Ranks with a tensor each, in the memory of the transports that are named.
Metas job(std::vector<std::string> instances, std::uint64_t epoch = 1, std::uint64_t digest = 9) {
  Metas metas;
  metas.checkpoint_name = "c";
  for (std::string& instance : instances) {
    const int number = static_cast<int>(metas.ranks.size());
    RankMetas& rank = metas.ranks.emplace_back();
    rank.layout = std::make_shared<const Layout>(
        Layout::make({*make_tensor_info(concat("t", number), DType::kU8, {64})}));
    rank.instance.rank = number;
    rank.instance.layout_hash = rank.layout->hash;
    rank.instance.epoch = epoch;
    rank.instance.digest_algorithm = 1;
    rank.instance.offsets = {0};
    rank.instance.digests = {digest};
    rank.instance.network.address = concat("10.0.0.", instance);
    rank.instance.pool_regions = {{0, 64, 1}};
    rank.instance.transport_descriptor =
        encode_descriptor({"ucx", std::move(instance), "", {}, {{1, 64}}});
  }
  return metas;
}

TEST(JoinedMetas, JobsStandInForEachOther) {
  const auto joined = join_metas({job({"1", "2"}), job({"3", "4", "5"})});
  ASSERT_TRUE(joined.is_ok()) << joined.status().to_string();
  EXPECT_EQ(joined->ranks.size(), 5u);
  EXPECT_THAT(joined->first_ranks, ElementsAre(0, 2));
  const auto catalog = catalog_of_foreign_owners(*joined, 3, "ucx");
  ASSERT_TRUE(catalog.is_ok()) << catalog.status().to_string();
  ASSERT_EQ((*catalog)->tensors().size(), 3u);
  EXPECT_EQ((*catalog)->tensors()[0].replica_count, 2u);
  EXPECT_EQ((*catalog)->tensors()[2].replica_count, 1u);
  EXPECT_EQ(foreign_label((*catalog)->metas(), 4, 3),
            "rank 1 (10.0.0.2) of the loaded metas; file 1");
  EXPECT_EQ(foreign_label((*catalog)->metas(), 5, 3),
            "rank 0 (10.0.0.3) of the loaded metas; file 2");
}

TEST(JoinedMetas, OneJobAloneIsAsItWas) {
  const auto joined = join_metas({job({"1", "2"})});
  ASSERT_TRUE(joined.is_ok());
  const auto catalog = catalog_of_foreign_owners(*joined, 1, "ucx");
  ASSERT_TRUE(catalog.is_ok());
  EXPECT_EQ(foreign_label((*catalog)->metas(), 2, 1), "rank 1 (10.0.0.2) of the loaded metas");
}

TEST(JoinedMetas, TheSameOwnerIsTakenOnceAsItIsNow) {
  const auto twice = join_metas({job({"1", "2"}), job({"1", "2"})});
  ASSERT_TRUE(twice.is_ok());
  const auto catalog = catalog_of_foreign_owners(*twice, 1, "ucx");
  ASSERT_TRUE(catalog.is_ok()) << catalog.status().to_string();
  for (const CatalogTensor& tensor : (*catalog)->tensors()) EXPECT_EQ(tensor.replica_count, 1u);
  // Registered anew with other bytes meanwhile: in either order the later metas count.
  for (const bool later_first : {false, true}) {
    std::vector<Metas> parts = {job({"1"}, 4, 9), job({"1"}, 5, 10)};
    if (later_first) std::swap(parts[0], parts[1]);
    const auto anew = join_metas(std::move(parts));
    ASSERT_TRUE(anew.is_ok());
    const auto now = catalog_of_foreign_owners(*anew, 1, "ucx");
    ASSERT_TRUE(now.is_ok()) << now.status().to_string();
    ASSERT_EQ((*now)->tensors().size(), 1u);
    EXPECT_EQ((*now)->tensors()[0].digest, 10u);
  }
}

TEST(JoinedMetas, JobsThatHoldSomethingElseAreRefused) {
  Metas other = job({"3"});
  other.checkpoint_name = "d";
  EXPECT_THAT(join_metas({job({"1"}), other}).status().message(),
              AllOf(HasSubstr("\"c\""), HasSubstr("\"d\"")));
  EXPECT_FALSE(join_metas({}).is_ok());
  const auto unequal = join_metas({job({"1"}, 1, 9), job({"2"}, 1, 10)});
  ASSERT_TRUE(unequal.is_ok());
  const Status status = catalog_of_foreign_owners(*unequal, 8, "ucx").status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("on rank 0 (10.0.0.1) of the loaded metas; file 1 (digest"),
                    HasSubstr("on rank 0 (10.0.0.2) of the loaded metas; file 2 (digest")));
}

// Whatever is wrong with them, the job that loads them knows these ranks by their files only.
TEST(JoinedMetas, OwnersAreCalledAsTheirFilesCallThem) {
  const auto refusal = [](const auto& damage) {
    auto joined = join_metas({job({"1"}), job({"2", "3"})});
    EXPECT_TRUE(joined.is_ok());
    damage(joined->ranks[2]);
    const Status status = catalog_of_foreign_owners(*joined, 8, "ucx").status();
    EXPECT_THAT(status.message(), HasSubstr("rank 1 (10.0.0.3) of the loaded metas; file 2"));
    EXPECT_THAT(status.message(), Not(HasSubstr("rank 10")));
    return status.message();
  };
  const auto with_layout = [](RankMetas& rank, std::vector<TensorInfo> tensors) {
    rank.layout = std::make_shared<const Layout>(Layout::make(std::move(tensors)));
    rank.instance.layout_hash = rank.layout->hash;
    rank.instance.offsets.resize(rank.layout->tensors.size());
    rank.instance.digests.resize(rank.layout->tensors.size());
  };
  EXPECT_THAT(refusal([](RankMetas& rank) { rank.instance.digest_algorithm = 77; }),
              HasSubstr("computes digests by algorithm 77"));
  EXPECT_THAT(refusal([](RankMetas& rank) { rank.instance.digest_algorithm = 0; }),
              HasSubstr("algorithm 0, rank 0 (10.0.0.1) of the loaded metas; file 1 by 1"));
  EXPECT_THAT(refusal([](RankMetas& rank) { rank.instance.offsets = {1ull << 40}; }),
              HasSubstr("\"t1\""));
  EXPECT_THAT(refusal([](RankMetas& rank) { rank.instance.offsets = {}; }),
              HasSubstr("1 tensors, 0 offsets"));
  EXPECT_THAT(refusal([](RankMetas& rank) { rank.instance.layout_hash = {}; }),
              HasSubstr("gather again"));
  EXPECT_THAT(refusal([&](RankMetas& rank) {
                with_layout(rank, {*make_tensor_info("t0", DType::kU8, {32})});
              }),
              HasSubstr("equal names must be equal tensors"));
  EXPECT_THAT(refusal([&](RankMetas& rank) {
                const auto twice = *make_tensor_info("t9", DType::kU8, {8});
                with_layout(rank, {twice, twice});
              }),
              HasSubstr("twice in its layout"));
}

TEST(JoinedMetas, OwnersOfNothingAreLoadedWhateverTheirAlgorithm) {
  for (const std::uint32_t algorithm : {0u, 1u, 77u}) {
    Metas metas = job({"1"});
    RankMetas& rank = metas.ranks[0];
    rank.layout = std::make_shared<const Layout>(Layout::make({}));
    rank.instance.layout_hash = rank.layout->hash;
    rank.instance.offsets.clear();
    rank.instance.digests.clear();
    rank.instance.digest_algorithm = algorithm;
    const auto catalog = catalog_of_foreign_owners(metas, 2, "ucx");
    EXPECT_TRUE(catalog.is_ok()) << catalog.status().to_string();
  }
}

TEST(JoinedMetas, AnOwnerOfNothingBesideOthersHasNoAlgorithm) {
  Metas metas = job({"1", "2"});
  RankMetas& rank = metas.ranks[0];
  rank.layout = std::make_shared<const Layout>(Layout::make({}));
  rank.instance.layout_hash = rank.layout->hash;
  rank.instance.offsets.clear();
  rank.instance.digests.clear();
  rank.instance.digest_algorithm = 0;
  const auto catalog = catalog_of_foreign_owners(metas, 2, "ucx");
  EXPECT_TRUE(catalog.is_ok()) << catalog.status().to_string();
}

TEST(JoinedMetas, AsAListOfJson) {
  const std::string one = metas_to_json(job({"1", "2"})), other = metas_to_json(job({"3", "4"}));
  const auto joined = metas_from_json(concat("[", one, ",", other, "]"));
  ASSERT_TRUE(joined.is_ok()) << joined.status().to_string();
  EXPECT_THAT(joined->first_ranks, ElementsAre(0, 2));
  EXPECT_EQ(metas_from_json(concat("[", one, "]"))->ranks.size(), 2u);
  EXPECT_FALSE(metas_from_json("[]").is_ok());
  EXPECT_THAT(metas_from_json(concat("[", one, ",{\"format\":1}]")).status().message(),
              HasSubstr("metas 2 of 2"));
}

}  // namespace
}  // namespace ckpt
