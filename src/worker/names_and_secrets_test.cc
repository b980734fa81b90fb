#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/channel_address.h"
#include "worker/secret_proof.h"

namespace ckpt {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

TEST(ChannelAddressTest, HasTheDocumentedForm) {
  EXPECT_EQ(channel_address("job-1", 3, 7), "ipc://@checkpoint-engine-job-1-3-7.v2.sock");
  EXPECT_EQ(*native_address("ipc://@a.v2.sock"), "ipc://@a.v2.sock.native");
  EXPECT_EQ(*abstract_name("ipc://@a.v2.sock"), "a.v2.sock");
}

TEST(ChannelAddressTest, IsShortForAnyJob) {
  const std::string longest = channel_address(std::string(4096, 'x'), 2147483647, ~0ull);
  EXPECT_TRUE(native_address(longest).is_ok());
  EXPECT_THAT(longest, EndsWith("-2147483647-18446744073709551615.v2.sock"));
  EXPECT_EQ(longest, channel_address(std::string(4096, 'x'), 2147483647, ~0ull));
  EXPECT_NE(channel_address(std::string(4096, 'x'), 0, 0),
            channel_address(std::string(4097, 'x'), 0, 0));
}

TEST(ChannelAddressTest, CleansNamesWithoutMixingThemUp) {
  const std::string slash = channel_address("a/b", 0, 0);
  EXPECT_THAT(slash, HasSubstr("a_b~"));
  EXPECT_NE(slash, channel_address("a b", 0, 0));
  EXPECT_NE(slash, channel_address("a_b", 0, 0));
}

TEST(ChannelAddressTest, RefusesWhatIsNoAddressOfOurs) {
  for (const char* address : {"", "ipc://@", "ipc:///tmp/x.v2.sock", "tcp://127.0.0.1:1.v2.sock",
                              "ipc://@checkpoint-engine-uuid-0.sock"}) {
    EXPECT_EQ(native_address(address).status().code(), StatusCode::kUnsupported) << address;
  }
  EXPECT_FALSE(native_address("ipc://@" + std::string(100, 'x') + ".v2.sock").is_ok());
  EXPECT_FALSE(abstract_name("ipc://@" + std::string(107, 'x')).is_ok());
  EXPECT_TRUE(abstract_name("ipc://@" + std::string(106, 'x')).is_ok());
}

TEST(SecretProofTest, DependsOnSecretRoleNoncesAndEpoch) {
  using native::Handshake;
  using native::Role;
  const auto worker = native::make_nonce();
  const auto rank = native::make_nonce();
  EXPECT_NE(worker, rank);
  const Handshake handshake{worker, rank, 7};
  const auto proof = native::prove_secret("s", Role::kWorker, handshake);
  EXPECT_TRUE(native::check_proof(proof, "s", Role::kWorker, handshake));
  EXPECT_FALSE(native::check_proof(proof, "t", Role::kWorker, handshake));
  EXPECT_FALSE(native::check_proof(proof, "", Role::kWorker, handshake));
  EXPECT_FALSE(native::check_proof(proof, "s", Role::kRank, handshake));
  EXPECT_FALSE(native::check_proof(proof, "s", Role::kWorker, {rank, worker, 7}));
  EXPECT_FALSE(native::check_proof(proof, "s", Role::kWorker, {worker, rank, 8}));
  EXPECT_FALSE(native::check_proof({}, "s", Role::kWorker, handshake));
  // Where one nonce ends and the other begins counts too.
  std::vector<std::byte> both = worker;
  both.insert(both.end(), rank.begin(), rank.end());
  EXPECT_FALSE(native::check_proof(proof, "s", Role::kWorker, {both, {}, 7}));
}

}  // namespace
}  // namespace ckpt
