#include "cli/update_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace ckpt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class UpdateSettingsTest : public testing::Test {
 protected:
  UpdateSettingsTest() {
    ::unsetenv("PS_INSTANCE_SIZE");
    command_.checkpoint_path = "/c";
  }
  ~UpdateSettingsTest() override { ::unsetenv("PS_INSTANCE_SIZE"); }

  UpdateSettings resolve(int world_size) {
    const auto settings = resolve_settings(command_, world_size);
    EXPECT_TRUE(settings.is_ok()) << settings.status().message();
    return settings ? *settings : UpdateSettings();
  }
  /// The reason; empty when it is not refused.
  std::string refused(int world_size) {
    const Status status = resolve_settings(command_, world_size).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  }

  UpdateCommand command_;
};

TEST_F(UpdateSettingsTest, AllRanksAreOneInstanceOfTheFieldsEndpoint) {
  const auto settings = resolve(4);
  EXPECT_EQ(settings.instance_size, 4);
  ASSERT_EQ(settings.endpoints.size(), 1u);
  EXPECT_EQ(settings.endpoints[0].to_string(), "http://localhost:19730");
  EXPECT_THAT(settings.updates, ElementsAre(IsEmpty()));
}

TEST_F(UpdateSettingsTest, EndpointsDivideTheRanks) {
  command_.endpoints = {"a:1", "b:2"};
  EXPECT_EQ(resolve(4).instance_size, 2);
  EXPECT_THAT(refused(5), HasSubstr("--inference-parallel-size"));
}

TEST_F(UpdateSettingsTest, TheOptionWinsOverTheVariable) {
  ::setenv("PS_INSTANCE_SIZE", "4", 1);
  EXPECT_EQ(resolve(4).instance_size, 4);
  command_.inference_parallel_size = 2;
  EXPECT_EQ(resolve(4).instance_size, 2);
  ::setenv("PS_INSTANCE_SIZE", "x", 1);
  command_.inference_parallel_size = 0;
  EXPECT_THAT(refused(4), HasSubstr("PS_INSTANCE_SIZE"));
}

TEST_F(UpdateSettingsTest, OneEndpointForAllNeedsAHostForEach) {
  command_.inference_parallel_size = 2;
  EXPECT_EQ(resolve(4).endpoints.size(), 1u);
  command_.nproc = 4;
  EXPECT_THAT(refused(4), HasSubstr("2 instances"));
  command_.endpoints = {"a:1", "b:2"};
  EXPECT_EQ(resolve(4).endpoints.size(), 2u);
  command_.endpoints.push_back("c:3");
  EXPECT_NE(refused(4), "");
}

TEST_F(UpdateSettingsTest, SizesThatDoNotFitAreRefused) {
  command_.inference_parallel_size = 3;
  EXPECT_NE(refused(4), "");
  command_.inference_parallel_size = 8;
  EXPECT_NE(refused(4), "");
}

TEST_F(UpdateSettingsTest, MethodsChooseTheRecipients) {
  command_.inference_parallel_size = 2;
  command_.update_method = "p2p";
  EXPECT_THAT(resolve(5).updates, ElementsAre(ElementsAre(0, 1)));
  command_.update_method = "all";
  EXPECT_THAT(resolve(4).updates, ElementsAre(IsEmpty(), ElementsAre(0, 1)));
  command_.update_method = "broadcast";
  command_.checkpoint_path.clear();
  command_.load_metas_files = {"m"};
  EXPECT_THAT(resolve(2).updates, ElementsAre(IsEmpty()));
  command_.update_method = "p2p";
  EXPECT_THAT(resolve(4).updates, ElementsAre(IsEmpty())) << "all of the job that loads them";
}

TEST_F(UpdateSettingsTest, SocketsWinOverEndpoints) {
  command_.uds = {"/a"};
  command_.endpoints = {"http://localhost:1"};
  EXPECT_EQ(resolve(2).endpoints.at(0).to_string(), "unix:/a");
}

TEST_F(UpdateSettingsTest, WithoutAnEngineNobodyIsCalled) {
  command_.engine = "none";
  command_.nproc = 4;
  command_.inference_parallel_size = 2;
  EXPECT_THAT(resolve(4).endpoints, IsEmpty());
}

TEST_F(UpdateSettingsTest, ContradictionsAreRefusedBeforeAnythingStarts) {
  EXPECT_TRUE(check_command(command_).is_ok());
  command_.endpoints = {"https://a"};
  EXPECT_FALSE(check_command(command_).is_ok());
  command_.endpoints.clear();
  command_.nproc = 2;
  EXPECT_TRUE(check_command(command_).is_ok());
  command_.rendezvous = "a:1";
  EXPECT_FALSE(check_command(command_).is_ok());
  command_.rendezvous.clear();
  command_.load_metas_files = {"m"};
  EXPECT_FALSE(check_command(command_).is_ok());
  command_.checkpoint_path.clear();
  EXPECT_TRUE(check_command(command_).is_ok());
  command_.save_metas_file = "s";
  EXPECT_FALSE(check_command(command_).is_ok());
  EXPECT_FALSE(check_command({}).is_ok());
}

}  // namespace
}  // namespace ckpt
