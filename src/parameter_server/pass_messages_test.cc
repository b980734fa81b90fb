#include "parameter_server/pass_messages.h"

#include <gtest/gtest.h>

#include <random>

namespace ckpt {
namespace {

TEST(PassMessages, OfferAndReadyComeBackEqual) {
  PassOffer offer{"host-a", DeviceKind::kCuda, "GPU-1", 1ull << 40,           1, 2,
                  3,        0xdeadbeefcafe,    false,   RingSharing::kPerRank};
  offer.lost_owners = {{9, peer_lost("rank 5 is gone")}};
  offer.network = {"", {"mlx5_0:1", "eth0"}, 400'000};
  const auto offered = decode_pass_offer(encode(offer));
  ASSERT_TRUE(offered.is_ok());
  EXPECT_EQ(offered->host_id, "host-a");
  EXPECT_EQ(offered->device_kind, DeviceKind::kCuda);
  EXPECT_EQ(offered->available_bytes, 1ull << 40);
  EXPECT_EQ(offered->catalog_fingerprint, 0xdeadbeefcafe);
  EXPECT_FALSE(offered->verify);
  EXPECT_EQ(offered->sharing, RingSharing::kPerRank);
  EXPECT_EQ(offered->network, offer.network);
  ASSERT_EQ(offered->lost_owners.size(), 1u);
  EXPECT_EQ(offered->lost_owners[0].rank, 9);
  EXPECT_EQ(offered->lost_owners[0].why.to_string(), peer_lost("rank 5 is gone").to_string());

  PassReady ready;
  ready.plan_fingerprint = 7;
  ready.address = "ipc://@x";
  ready.progress = "board";
  ready.ring = {DeviceKind::kCuda, 4096, "", std::vector<std::byte>(64, std::byte{9}), "GPU-2"};
  ready.transport_descriptor = {std::byte{1}, std::byte{2}};
  ready.ring_region = 11;
  ready.guard = "guard";
  const auto told = decode_pass_ready(encode(ready));
  ASSERT_TRUE(told.is_ok());
  EXPECT_EQ(told->address, ready.address);
  EXPECT_EQ(told->progress, "board");
  EXPECT_EQ(told->ring.ipc, ready.ring.ipc);
  EXPECT_EQ(told->ring.device_uuid, "GPU-2");
  EXPECT_EQ(told->fill_staging.bytes, 0u);
  EXPECT_EQ(told->transport_descriptor, ready.transport_descriptor);
  EXPECT_EQ(told->ring_region, 11u);
  EXPECT_EQ(told->guard, "guard");
}

TEST(PassMessages, NotesComeBackEqual) {
  const auto note = decode_pass_note(encode(PassNote{PassNote::Kind::kNextPass, 2, {1, 3}}));
  ASSERT_TRUE(note);
  EXPECT_EQ(note->kind, PassNote::Kind::kNextPass);
  EXPECT_EQ(note->pass, 2u);
  EXPECT_EQ(note->ranks, (std::vector<int>{1, 3}));
}

TEST(PassMessages, DamagedBytesAreRefused) {
  std::mt19937 random(1);
  const std::vector<std::byte> good =
      encode(PassOffer{"host", DeviceKind::kHost, "", 1, 2, 3, 4, 5, true});
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes = good;
    bytes.resize(random() % (good.size() + 1));
    for (std::size_t i = 0; i < bytes.size() && i < 3; ++i)
      bytes[random() % bytes.size()] = std::byte(random());
    // Whatever comes out must be read without touching foreign memory: the sanitizers watch.
    static_cast<void>(decode_pass_offer(bytes).is_ok());
    static_cast<void>(decode_pass_ready(bytes).is_ok());
    static_cast<void>(decode_pass_note(bytes).has_value());
  }
  EXPECT_FALSE(decode_pass_offer({}).is_ok());
  EXPECT_FALSE(decode_pass_note({}));
}

}  // namespace
}  // namespace ckpt
