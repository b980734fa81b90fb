#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/progress_display.h"
#include "cli/report_json.h"
#include "cli/report_table.h"

namespace ckpt {
namespace {

using nlohmann::json;
using testing::HasSubstr;

RankReport report(int rank) {
  UpdateReport update;
  update.rank = rank;
  update.epoch = 3;
  update.checkpoint_name = "c\xff";
  update.stages = {{"fill", 0.5 + rank, 1'000'000'000}, {"finish", 0.25, 0}};
  update.total_tensors = 10;
  update.total_bytes = 2'000'000'000;
  update.loaded_tensors = 10;
  update.loaded_bytes = 2'000'000'000;
  update.verified_tensors = 9;
  update.wire = "native";
  update.update_seconds = 2;
  RankReport result;
  result.rank = rank;
  result.host = "h";
  result.setup = {{"register", 1, 500}};
  result.updates = {update};
  return result;
}

TEST(Report, SurvivesTheWayToRankZero) {
  const auto back = decode_rank_report(encode_rank_report(report(1)));
  ASSERT_TRUE(back.is_ok()) << back.status().message();
  EXPECT_EQ(encode_rank_report(*back),
            encode_rank_report(*decode_rank_report(encode_rank_report(*back))));
  EXPECT_EQ(back->rank, 1);
  ASSERT_EQ(back->updates.size(), 1u);
  EXPECT_EQ(back->updates[0].rank, 1);
  EXPECT_EQ(back->updates[0].verified_tensors, 9u);
  EXPECT_EQ(back->updates[0].stages.at(0).bytes, 1'000'000'000u);
}

TEST(Report, WhatIsNoReportIsRefused) {
  for (const char* text :
       {"", "[]", "{}", R"({"rank":"x"})", R"({"rank":1,"host":"h","setup":3})"}) {
    EXPECT_EQ(decode_rank_report(text).status().code(), StatusCode::kProtocol) << text;
  }
}

TEST(Report, FileHasTheWholeAndEveryRank) {
  const json file = json::parse(job_report_json({report(0), report(1)}));
  EXPECT_EQ(file["world_size"], 2);
  EXPECT_EQ(file["total_bytes"], 2'000'000'000);
  EXPECT_EQ(file["loaded_bytes"], 4'000'000'000);
  EXPECT_DOUBLE_EQ(file["gb_per_s"].get<double>(), 2.0);
  EXPECT_EQ(file["ranks"][1]["verified_tensors"], 9);
  EXPECT_EQ(file["ranks"][1]["stages"][0]["name"], "fill");
}

TEST(Report, TableTakesTheSlowestAndTheSum) {
  const std::string table = report_table({report(0), report(1)});
  EXPECT_THAT(table, HasSubstr("stage                   seconds            bytes       GB/s"));
  EXPECT_THAT(table, HasSubstr("fill                     1.5000       2000000000       1.33"));
  EXPECT_THAT(table, HasSubstr("finish                   0.2500\n"));
  EXPECT_THAT(table, HasSubstr("update                   2.0000       4000000000       2.00"));
  EXPECT_THAT(table, HasSubstr("loaded: 20 tensors on 2 workers, 18 verified there"));
}

TEST(Progress, LineSaysHowFarHowFastHowLong) {
  EXPECT_EQ(progress_line(1u << 30, 4ull << 30, 0.5),
            "[######------------------]  25 %  1.00 GiB of 4.00 GiB  2.15 GB/s  1.5 s left");
  EXPECT_EQ(progress_line(1u << 30, 4ull << 30, 0.5, /*bar=*/false),
            " 25 %  1.00 GiB of 4.00 GiB  2.15 GB/s  1.5 s left");
  EXPECT_THAT(progress_line(0, 100, 0), HasSubstr("  0 %"));
  EXPECT_THAT(progress_line(0, 0, 1), HasSubstr("100 %"));
  EXPECT_LE(progress_line(1, 999ull << 40, 1000).size(), 80u);
}

}  // namespace
}  // namespace ckpt
