#include "control/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace ckpt {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Environment fake(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

std::string refusal(const RendezvousOptions& options, Variables variables) {
  const auto who = resolve_rendezvous(options, fake(std::move(variables)));
  return who ? "accepted" : who.status().message();
}

TEST(Rendezvous, TorchrunUsesThePortAfterItsOwn) {
  const auto who = resolve_rendezvous({}, fake({{"RANK", "3"},
                                                {"WORLD_SIZE", "8"},
                                                {"LOCAL_RANK", "0"},
                                                {"MASTER_ADDR", "node0"},
                                                {"MASTER_PORT", "29500"}}));
  ASSERT_TRUE(who) << who.status().to_string();
  EXPECT_EQ(who->rank, 3);
  EXPECT_EQ(who->world_size, 8);
  EXPECT_EQ(who->local_rank, 0);
  EXPECT_EQ(who->hub, (HostPort{"node0", 29501}));
  EXPECT_EQ(who->source, "torchrun");
}

TEST(Rendezvous, OtherLaunchersAreReadInOrder) {
  const Variables slurm = {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "6"}, {"SLURM_LOCALID", "1"}};
  Variables both = slurm;
  both.insert({{"OMPI_COMM_WORLD_RANK", "0"},
               {"OMPI_COMM_WORLD_SIZE", "2"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  RendezvousOptions options;
  options.hub = "10.0.0.1:7000";
  const auto first = resolve_rendezvous(options, fake(both));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->source, "Open MPI");
  EXPECT_EQ(first->rank, 0);
  const auto second = resolve_rendezvous(options, fake(slurm));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->source, "Slurm");
  EXPECT_EQ(second->rank, 5);
  EXPECT_EQ(second->local_rank, 1);
}

TEST(Rendezvous, WhatALauncherSaysCanBeAskedByHalves) {
  const auto nothing = launched_rank(fake({{"LOCAL_RANK", "3"}}));
  ASSERT_TRUE(nothing);
  EXPECT_FALSE(nothing->rank || nothing->world_size || nothing->local_rank);
  const auto half = launched_rank(fake({{"RANK", "5"}, {"SLURM_PROCID", "7"}}));
  ASSERT_TRUE(half);
  EXPECT_EQ(half->rank, 5);
  EXPECT_FALSE(half->world_size);
  const auto whole = launched_rank(fake({{"OMPI_COMM_WORLD_RANK", "9"},
                                         {"OMPI_COMM_WORLD_SIZE", "16"},
                                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}));
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->rank, 9);
  EXPECT_EQ(whole->world_size, 16);
  EXPECT_EQ(whole->local_rank, 1);
  EXPECT_THAT(launched_rank(fake({{"RANK", "x"}})).status().message(), HasSubstr("RANK=\"x\""));
}

TEST(Rendezvous, AnExplicitZeroIsAValue) {
  RendezvousOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.local_rank = 0;
  const auto who =
      resolve_rendezvous(options, fake({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "2"}}));
  ASSERT_TRUE(who) << who.status().to_string();
  EXPECT_EQ(who->rank, 0);
  EXPECT_EQ(who->world_size, 1);
  EXPECT_EQ(who->local_rank, 0);
  EXPECT_EQ(who->hub, (HostPort{"127.0.0.1", 0}));
}

TEST(Rendezvous, NothingSaidIsAJobOfOne) {
  const auto who = resolve_rendezvous({}, fake({{"RANK", ""}}));
  ASSERT_TRUE(who);
  EXPECT_EQ(who->world_size, 1);
  EXPECT_FALSE(who->local_rank);
}

TEST(Rendezvous, HalfSetIsRefusedByName) {
  EXPECT_THAT(refusal({}, {{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(refusal({}, {{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not"));
  EXPECT_THAT(refusal({}, {{"SLURM_PROCID", "0"}}), HasSubstr("SLURM_NTASKS is not"));
  EXPECT_THAT(refusal({}, {{"MASTER_ADDR", "a"}}), HasSubstr("MASTER_PORT is not"));
  EXPECT_THAT(refusal({}, {{"MASTER_PORT", "1"}}), HasSubstr("MASTER_ADDR is not"));
  EXPECT_THAT(refusal({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("--rendezvous"));
  RendezvousOptions rank_only;
  rank_only.rank = 0;
  EXPECT_THAT(refusal(rank_only, {}), HasSubstr("rank 0 is given without a world size"));
  RendezvousOptions size_only;
  size_only.world_size = 4;
  EXPECT_THAT(refusal(size_only, {}), HasSubstr("world size 4 is given without a rank"));
}

TEST(Rendezvous, WrongNumbersAreRefusedByName) {
  EXPECT_THAT(refusal({}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}}), HasSubstr("rank 2"));
  EXPECT_THAT(refusal({}, {{"RANK", "x"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK=\"x\""));
  EXPECT_THAT(refusal({}, {{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK"));
  EXPECT_THAT(refusal({}, {{"RANK", "0"}, {"WORLD_SIZE", "0"}}), HasSubstr("world size 0"));
  EXPECT_THAT(refusal({}, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "4"}}),
              HasSubstr("local rank 4"));
  EXPECT_THAT(refusal({}, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "65535"}}),
              HasSubstr("MASTER_PORT=65535"));
}

TEST(Rendezvous, TheOptionWinsOverMasterAddr) {
  RendezvousOptions options;
  options.hub = "[fd00::1]:7000";
  const auto who =
      resolve_rendezvous(options, fake({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "nonsense"}}));
  ASSERT_TRUE(who) << who.status().to_string();
  EXPECT_EQ(who->hub, (HostPort{"fd00::1", 7000}));
}

TEST(HostPort, ParsesAndPrints) {
  for (const char* text : {"node-1.example:1", "127.0.0.1:0", "[::1]:65535"}) {
    const auto address = parse_host_port(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->to_string(), text);
  }
  for (const char* text : {"", "host", ":1", "host:", "host:65536", "host:-1", "::1:80", "[::1]",
                           "[::1:80", "a b:1", "[]:1", "host:1x", "tcp://host:1"}) {
    EXPECT_FALSE(parse_host_port(text)) << text;
  }
}

}  // namespace
}  // namespace ckpt
