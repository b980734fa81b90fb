// One bucket out of a ring, right and corrupted, for both kinds of ring.
#include "worker/bucket_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "worker/test_update.h"

namespace ckpt {
namespace {

using ::testing::HasSubstr;

/// An engine that wants every tensor in memory of its own, except those named in by_load.
class OldWeights final : public test::TestLoader {
 public:
  static constexpr std::byte kOld{0x5a};

  Result<std::span<std::byte>> destination(const TensorInfo& tensor) override {
    auto memory = TestLoader::destination(tensor);
    if (memory) std::ranges::fill(*memory, kOld);
    return memory;
  }
  /// None of the memory that was given has been written.
  bool untouched() const {
    return std::ranges::all_of(held, [](const auto& tensor) {
      return std::ranges::all_of(tensor.second, [](std::byte byte) { return byte == kOld; });
    });
  }
};

class BucketLoaderTest : public ::testing::Test {
 protected:
  native::Bucket bucket() const {
    native::Bucket bucket{7, {}};
    for (const RingEntry& entry : ring_.entries()) {
      bucket.entries.push_back({*entry.info, entry.ring_offset, 0, entry.bytes, entry.digest});
    }
    return bucket;
  }
  /// The ring, as a worker maps one that lies on its device.
  std::shared_ptr<RingMapping> device_ring() {
    const auto device = make_host_device();
    auto buffer = device->open(ring_.handle());
    auto stream = device->make_stream();
    EXPECT_TRUE(buffer.is_ok() && stream.is_ok());
    return map_device_ring(device, std::move(*buffer), std::move(*stream));
  }
  std::shared_ptr<RingMapping> host_ring() {
    auto mapping = open_host_ring(ring_.handle());
    EXPECT_TRUE(mapping.is_ok());
    return std::move(*mapping);
  }
  Result<BucketAck> load(const std::shared_ptr<RingMapping>& ring, bool verify = true) {
    return load_bucket(bucket(), ring, loader_, verify, test::soon());
  }
  /// Of the last tensor, so that all others are right.
  void corrupt() { ring_.content(ring_.size() - 1).back() ^= std::byte{1}; }

  test::Ring ring_{test::unique_job()};
  OldWeights loader_;
};

TEST_F(BucketLoaderTest, LoadsAndVerifiesFromBothKindsOfRing) {
  const auto device = device_ring();
  for (const auto& ring : {device, host_ring()}) {
    loader_.held.clear();
    const auto ack = load(ring);
    ASSERT_TRUE(ack.is_ok()) << ack.status().to_string();
    EXPECT_EQ(ack->verified_tensors, ring_.size());
    EXPECT_EQ(ack->verify_seconds > 0, ring == device)
        << "the loop that copies a host ring digests";
    EXPECT_LE(ack->verify_seconds, ack->load_seconds);
    EXPECT_TRUE(loader_.holds(ring_));
  }
}

TEST_F(BucketLoaderTest, ARingOnADeviceIsCheckedBeforeAnythingIsCopied) {
  corrupt();
  const auto ack = load(device_ring());
  ASSERT_EQ(ack.status().code(), StatusCode::kDataLoss) << ack.status().to_string();
  EXPECT_THAT(ack.status().message(), HasSubstr(ring_.entries().back().info->name));
  EXPECT_EQ(loader_.held.size(), ring_.size());
  EXPECT_TRUE(loader_.untouched());
}

TEST_F(BucketLoaderTest, WrongBytesOfAHostRingAreFoundAndNotHandedOver) {
  loader_.by_load = {ring_.entries().front().info->name};
  corrupt();
  EXPECT_EQ(load(host_ring()).status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(loader_.held[ring_.entries().front().info->name].empty());
}

TEST_F(BucketLoaderTest, WithoutVerificationEverythingIsCopiedAsItIs) {
  corrupt();
  for (const auto& ring : {device_ring(), host_ring()}) {
    loader_.held.clear();
    const auto ack = load(ring, false);
    ASSERT_TRUE(ack.is_ok()) << ack.status().to_string();
    EXPECT_EQ(ack->verified_tensors, 0u);
    EXPECT_EQ(ack->verify_seconds, 0);
    EXPECT_TRUE(loader_.holds(ring_));
  }
}

}  // namespace
}  // namespace ckpt
