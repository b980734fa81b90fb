// Every awkward file of tests/data/safetensors against its verdict in expected.json.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors_header.h"

namespace ckpt {
namespace {

const std::string kFolder = CKPT_TEST_DATA "/safetensors/";

// What expected.json leaves open; the reasons are in docs/safetensors.md.
const std::map<std::string, bool> kOurVerdicts = {
    {"d_F4_odd_row.safetensors", true},      {"d_F6_E3M2.safetensors", false},
    {"j04_metadata_null.safetensors", true}, {"j05_metadata_number.safetensors", false},
    {"j13_leading_ws.safetensors", false},   {"n01_empty_name.safetensors", true},
};

nlohmann::json expected() {
  std::ifstream file(kFolder + "expected.json");
  return nlohmann::json::parse(file);
}

class SafetensorsFixture : public testing::TestWithParam<std::string> {};

TEST_P(SafetensorsFixture, HasItsVerdict) {
  const nlohmann::json about = expected().at(GetParam());
  ASSERT_EQ(std::filesystem::file_size(kFolder + GetParam()), about.at("bytes"));
  const std::string verdict = about.at("verdict");
  const bool accept = verdict == "either" ? kOurVerdicts.at(GetParam()) : verdict == "ok";

  const Result<SafetensorsHeader> header = read_safetensors_header(kFolder + GetParam());
  EXPECT_EQ(header.is_ok(), accept) << about.at("why") << ": " << header.status().to_string();
  if (!header.is_ok()) {
    EXPECT_EQ(header.status().message().rfind(kFolder + GetParam() + ": ", 0), 0u)
        << header.status().message();
    EXPECT_EQ(header.status().message().find('\n'), std::string::npos);
  }
}

std::vector<std::string> all_files() {
  std::vector<std::string> names;
  const nlohmann::json verdicts = expected();
  for (const auto& item : verdicts.items()) names.push_back(item.key());
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, SafetensorsFixture, testing::ValuesIn(all_files()),
                         [](const auto& file) {
                           return file.param.substr(0, file.param.find('.'));
                         });

TEST(SafetensorsFixtures, AllAreInTheList) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".safetensors") ++files;
  }
  EXPECT_EQ(files, all_files().size());
}

}  // namespace
}  // namespace ckpt
