#include "cli/inspect_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "cli/make_checkpoint_command.h"
#include "cli/text_file.h"

namespace ckpt {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

struct Outcome {
  int code;
  std::string out, err;
};

template <typename Command>
Outcome outcome(const Command& command) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = run(command);
  return {code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

class InspectCommandTest : public testing::Test {
 protected:
  InspectCommandTest() { std::filesystem::create_directories(folder_); }
  ~InspectCommandTest() override { std::filesystem::remove_all(folder_); }

  MakeCheckpointCommand small() const {
    MakeCheckpointCommand make;
    make.like = "qwen3-0.6b";
    make.folder = folder_ + "/made";
    make.model.layers = 1;
    make.model.shrink = 16;
    make.content.shard_bytes = 100'000;
    return make;
  }

  const std::string folder_ = concat("/tmp/ckpt-inspect-", ::getpid());
};

TEST_F(InspectCommandTest, ShowsACheckpointThatWasMade) {
  const auto made = outcome(small());
  EXPECT_EQ(made.code, 0) << made.err;
  const auto text = outcome(InspectCommand{{folder_ + "/made"}, false, true});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("tensors"), HasSubstr("BF16"),
                              HasSubstr("\"model.layers.0.self_attn.q_proj.weight\"")));
  const auto shown = outcome(InspectCommand{{folder_ + "/made"}, true, false});
  const json all = json::parse(shown.out);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["tensors"].size(), all[0]["tensor_count"].get<std::size_t>());
  EXPECT_GT(all[0]["files"].size(), 1u);
  EXPECT_EQ(outcome(small()).code, 2) << "there is a checkpoint already";
}

TEST_F(InspectCommandTest, RefusesWithOneLineAndGoesOn) {
  EXPECT_EQ(outcome(small()).code, 0);
  const std::string bad = folder_ + "/bad.safetensors";
  const std::string header = R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  ASSERT_TRUE(write_text_file(bad, bytes + header + "1234").is_ok());
  const auto result = outcome(InspectCommand{{bad, folder_ + "/made"}, false, false});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr(bad), HasSubstr("\"t\"")));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
  EXPECT_THAT(result.out, HasSubstr(folder_ + "/made"));
  EXPECT_EQ(outcome(InspectCommand{{"/nonexistent"}, false, false}).code, 2);
}

TEST(InspectFixtures, EveryAwkwardFileHasItsExitCode) {
  const std::string folder = CKPT_TEST_DATA "/safetensors";
  const json verdicts = json::parse(*read_text_file(folder + "/expected.json"));
  ASSERT_GT(verdicts.size(), 70u);
  for (const auto& [name, expected] : verdicts.items()) {
    const auto result = outcome(InspectCommand{{folder + "/" + name}, true, true});
    const auto lines = std::count(result.err.begin(), result.err.end(), '\n');
    if (result.code == 2) {
      EXPECT_NE(expected["verdict"], "ok") << name << ": " << result.err;
      EXPECT_EQ(lines, 1) << result.err;
      EXPECT_THAT(result.err, HasSubstr(name));
    } else {
      EXPECT_EQ(result.code, 0) << name;
      EXPECT_NE(expected["verdict"], "bad") << name;
      EXPECT_EQ(lines, 0) << result.err;
      EXPECT_FALSE(json::parse(result.out, nullptr, false).is_discarded()) << name;
    }
  }
}

TEST_F(InspectCommandTest, MakingAnUnknownModelIsRefused) {
  MakeCheckpointCommand make = small();
  make.like = "gpt-9";
  EXPECT_EQ(outcome(make).code, 2);
}

}  // namespace
}  // namespace ckpt
