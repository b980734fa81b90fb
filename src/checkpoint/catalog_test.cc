#include "checkpoint/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/order.h"
#include "checkpoint/test_model.h"

namespace ckpt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorInfo tensor(std::string name, std::int64_t elements = 8, DType dtype = DType::kF32) {
  return *make_tensor_info(std::move(name), dtype, {elements});
}

/// Every tensor's digest is a function of its name, so that replicas agree.
RankMetas rank_metas(int rank, std::vector<TensorInfo> tensors) {
  RankMetas out;
  out.layout = std::make_shared<Layout>(Layout::make(std::move(tensors)));
  out.instance.rank = rank;
  out.instance.layout_hash = out.layout->hash;
  out.instance.digest_algorithm = 1;
  std::uint64_t offset = 1000 * static_cast<std::uint64_t>(rank);
  for (const TensorInfo& info : out.layout->tensors) {
    out.instance.offsets.push_back(offset);
    out.instance.digests.push_back(std::hash<std::string>{}(info.name));
    offset += 256;
  }
  return out;
}

Metas metas_of(std::vector<std::vector<TensorInfo>> ranks) {
  Metas metas;
  metas.checkpoint_name = "test";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    metas.ranks.push_back(rank_metas(static_cast<int>(rank), std::move(ranks[rank])));
  }
  return metas;
}

Result<Catalog> build(const Metas& metas) { return Catalog::build(std::make_shared<Metas>(metas)); }

void expect_refused(const Metas& metas, StatusCode code, const auto& message) {
  const auto catalog = build(metas);
  ASSERT_FALSE(catalog.is_ok());
  EXPECT_EQ(catalog.status().code(), code);
  EXPECT_THAT(catalog.status().message(), message);
}

TEST(Catalog, JoinsReplicas) {
  const auto catalog =
      build(metas_of({{tensor("a"), tensor("b")}, {}, {tensor("c"), tensor("a")}}));
  ASSERT_TRUE(catalog.is_ok()) << catalog.status().to_string();
  EXPECT_EQ(catalog->world_size(), 3);
  EXPECT_EQ(catalog->total_bytes(), 96u);
  ASSERT_EQ(catalog->tensors().size(), 3u);
  EXPECT_EQ(catalog->tensors()[0].info->name, "a");
  EXPECT_EQ(catalog->tensors()[2].info->name, "c");
  EXPECT_THAT(catalog->tensors_of(0), ElementsAre(0, 1));
  EXPECT_TRUE(catalog->tensors_of(1).empty());
  EXPECT_THAT(catalog->tensors_of(2), ElementsAre(2, 0));
  const auto replicas = catalog->replicas(catalog->tensors()[0]);
  ASSERT_EQ(replicas.size(), 2u);
  EXPECT_EQ(replicas[0].rank, 0);
  EXPECT_EQ(replicas[1].rank, 2);
  EXPECT_EQ(replicas[1].index, 1u);
  EXPECT_EQ(replicas[1].offset, 2256u);
}

TEST(Catalog, OfNobodyIsEmpty) {
  const auto catalog = build({});
  ASSERT_TRUE(catalog.is_ok());
  EXPECT_EQ(catalog->world_size(), 0);
  EXPECT_TRUE(catalog->tensors().empty());
}

TEST(Catalog, KnowsGroups) {
  const auto catalog = build(metas_of({small_model(2, 2)}));
  ASSERT_TRUE(catalog.is_ok());
  for (const CatalogTensor& entry : catalog->tensors()) {
    EXPECT_EQ(entry.group, group_id(entry.info->name));
  }
}

TEST(Catalog, EveryTensorOfManyRanksIsFound) {
  const auto model = small_model(4, 40);
  std::vector<std::vector<TensorInfo>> ranks(7);
  for (std::size_t i = 0; i < model.size(); ++i) {
    ranks[i % 7].push_back(model[i]);
    if (i % 3 == 0) ranks[(i + 1) % 7].push_back(model[i]);
  }
  const auto catalog = build(metas_of(ranks));
  ASSERT_TRUE(catalog.is_ok()) << catalog.status().to_string();
  ASSERT_EQ(catalog->tensors().size(), model.size());
  std::size_t replicas = 0;
  for (const CatalogTensor& entry : catalog->tensors()) {
    for (const Replica& replica : catalog->replicas(entry)) {
      EXPECT_EQ(ranks[replica.rank][replica.index].name, entry.info->name);
      ++replicas;
    }
  }
  EXPECT_EQ(replicas, model.size() + (model.size() + 2) / 3);
  for (int rank = 0; rank < 7; ++rank) {
    ASSERT_EQ(catalog->tensors_of(rank).size(), ranks[rank].size());
    for (std::size_t i = 0; i < ranks[rank].size(); ++i) {
      EXPECT_EQ(*catalog->tensors()[catalog->tensors_of(rank)[i]].info, ranks[rank][i]);
    }
  }
}

TEST(Catalog, UnequalReplicasAreRefusedWithBothRanks) {
  expect_refused(
      metas_of({{tensor("a")}, {}, {tensor("a", 8, DType::kI32)}}), StatusCode::kInvalidArgument,
      AllOf(HasSubstr("\"a\""), HasSubstr("F32 [8] on rank 0"), HasSubstr("I32 [8] on rank 2")));
  expect_refused(metas_of({{tensor("b")}, {tensor("a")}, {tensor("a", 9)}}),
                 StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("[8] on rank 1"), HasSubstr("[9] on rank 2")));
  Metas metas = metas_of({{tensor("a")}, {}, {tensor("a")}});
  metas.ranks[2].instance.digests[0] ^= 1;
  expect_refused(metas, StatusCode::kDataLoss,
                 AllOf(HasSubstr("\"a\""), HasSubstr("rank 0"), HasSubstr("rank 2")));
}

TEST(Catalog, ContradictoryMetasAreRefused) {
  const Metas good = metas_of({{tensor("a")}, {tensor("b")}});
  const auto expect = [&](auto damage, const char* message) {
    Metas metas = good;
    damage(metas.ranks[1]);
    expect_refused(metas, StatusCode::kInvalidArgument,
                   AllOf(HasSubstr("rank 1"), HasSubstr(message)));
  };
  expect([](RankMetas& r) { r.layout = nullptr; }, "no layout");
  expect([](RankMetas& r) { r.instance.rank = 0; }, "data of rank 0");
  expect([](RankMetas& r) { r.instance.layout_hash.low ^= 1; }, "gather again");
  expect([](RankMetas& r) { r.instance.offsets.pop_back(); }, "0 offsets");
  expect([](RankMetas& r) { r.instance.digests.push_back(1); }, "2 digests");
  expect([](RankMetas& r) { r.instance.digest_algorithm = 2; }, "algorithm 2");
  expect([](RankMetas& r) { r.instance.digest_algorithm = 77; }, "this program by algorithm 1");
  expect([](RankMetas& r) { r.instance.offsets[0] = ~0ull; }, "address space");
  expect([](RankMetas& r) { r = rank_metas(1, {tensor("b"), tensor("c"), tensor("b")}); }, "twice");
}

// Not only ranks that differ from each other: a file of a later version has one algorithm too.
TEST(Catalog, DigestsOfAnotherAlgorithmAreRefused) {
  Metas metas = metas_of({{tensor("a")}, {tensor("b")}});
  for (RankMetas& rank : metas.ranks) rank.instance.digest_algorithm = 77;
  expect_refused(metas, StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("\"test\""), HasSubstr("algorithm 77")));
}

TEST(Catalog, RefusesMoreBytesThan64BitsCount) {
  const std::int64_t huge = 1ll << 62;
  const Metas metas = metas_of({{tensor("a", huge, DType::kU8)},
                                {tensor("b", huge, DType::kU8)},
                                {tensor("c", huge, DType::kU8)},
                                {tensor("d", huge, DType::kU8)}});
  expect_refused(metas, StatusCode::kInvalidArgument, HasSubstr("64 bits"));
}

}  // namespace
}  // namespace ckpt
