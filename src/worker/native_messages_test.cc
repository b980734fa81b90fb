#include "worker/native_messages.h"

#include <gtest/gtest.h>

#include <random>

namespace ckpt::native {
namespace {

Bytes bytes(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(data, data + text.size());
}

template <typename T>
T round_trip(const T& body) {
  auto message = decode(encode(42, body));
  EXPECT_TRUE(message.is_ok()) << message.status().to_string();
  EXPECT_EQ(message->epoch, 42u);
  return std::get<T>(std::move(message->body));
}

Bucket test_bucket() {
  Bucket bucket{7, {}};
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{}, {0, 3}, {5, 7}}) {
    TensorInfo info = *make_tensor_info("t" + std::to_string(shape.size()), DType::kF32, shape);
    const std::uint64_t size = info.bytes;
    bucket.entries.push_back({std::move(info), 1ull << 40, 0, size, ~0ull});
  }
  return bucket;
}

TEST(NativeMessagesTest, EveryBodySurvivesTheWire) {
  const Hello hello{9, "software", -1, 3, 1, bytes("nonce"), true};
  EXPECT_EQ(round_trip(hello), hello);
  const Challenge challenge{9, "software", bytes("n"), bytes("p"), true};
  EXPECT_EQ(round_trip(challenge), challenge);
  EXPECT_EQ(round_trip(Proof{bytes("p")}), Proof{bytes("p")});
  const Welcome welcome{5, false, 1, 1ull << 60, ~0ull};
  EXPECT_EQ(round_trip(welcome), welcome);
  const OpenRing ring =
      round_trip(OpenRing{{DeviceKind::kCuda, 1ull << 33, "name", bytes("handle"), "GPU-1"}});
  EXPECT_EQ(ring.ring.kind, DeviceKind::kCuda);
  EXPECT_EQ(ring.ring.bytes, 1ull << 33);
  EXPECT_EQ(ring.ring.shared_memory, "name");
  EXPECT_EQ(ring.ring.ipc, bytes("handle"));
  EXPECT_EQ(ring.ring.device_uuid, "GPU-1");
  EXPECT_EQ(round_trip(test_bucket()), test_bucket());
  const BucketAck ack = round_trip(BucketLoaded{{1, 2, 3, 4, 0.5, 0.25}}).ack;
  EXPECT_EQ(ack.bucket, 1u);
  EXPECT_EQ(ack.tensors, 2u);
  EXPECT_EQ(ack.bytes, 3u);
  EXPECT_EQ(ack.verified_tensors, 4u);
  EXPECT_EQ(ack.load_seconds, 0.5);
  EXPECT_EQ(ack.verify_seconds, 0.25);
  round_trip(RingOpened{});
  round_trip(Release{});
  round_trip(Released{});
  round_trip(FinishPass{});
  round_trip(PassFinished{});
}

TEST(NativeMessagesTest, AFailureKeepsCodeRankAndText) {
  for (const Status& cause :
       {data_loss("text"), aborted("").on_rank(0), io_error("x").on_rank(9)}) {
    const Status seen = round_trip(Failure{cause}).cause;
    EXPECT_EQ(seen.code(), cause.code());
    EXPECT_EQ(seen.rank(), cause.rank());
    EXPECT_EQ(seen.message(), cause.message());
  }
  const Status newer = round_trip(Failure{Status(static_cast<StatusCode>(777), "t")}).cause;
  EXPECT_EQ(newer.code(), StatusCode::kPeerError);
}

TEST(NativeMessagesTest, AnyAlignmentIsRead) {
  const Bytes message = encode(1, test_bucket());
  Bytes shifted(message.size() + 16);
  for (std::size_t shift = 0; shift < 16; ++shift) {
    std::copy(message.begin(), message.end(), shifted.begin() + static_cast<long>(shift));
    EXPECT_TRUE(decode(std::span(shifted).subspan(shift, message.size())).is_ok());
  }
}

TEST(NativeMessagesTest, TruncatedMessagesAreRefused) {
  const Bytes message = encode(1, test_bucket());
  for (std::size_t size = 0; size < message.size(); ++size) {
    const auto decoded = decode(std::span(message).first(size));
    if (decoded) continue;  // padding at the end may be missing
    EXPECT_EQ(decoded.status().code(), StatusCode::kProtocol);
  }
  EXPECT_FALSE(decode({}).is_ok());
}

TEST(NativeMessagesTest, DamagedMessagesNeverBreakTheDecoder) {
  const Bytes message = encode(1, test_bucket());
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    Bytes damaged = message;
    for (int i = 0; i <= round % 4; ++i) {
      damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    }
    const auto decoded = decode(damaged);
    if (!decoded) continue;
    if (const auto* bucket = std::get_if<Bucket>(&decoded->body)) {
      for (const Entry& entry : bucket->entries) {
        EXPECT_LE(entry.begin + entry.bytes, entry.info.bytes);
      }
    }
  }
}

TEST(NativeMessagesTest, ImpossibleTensorsAreRefused) {
  TensorInfo info = *make_tensor_info("w", DType::kF32, {4});
  const auto refuse = [&](const RingEntry& entry) {
    const auto decoded = decode(encode_bucket(1, 0, std::vector{entry}));
    EXPECT_EQ(decoded.status().code(), StatusCode::kProtocol);
  };
  refuse({&info, 0, 0, 17, 0});
  refuse({&info, 0, 8, 9, 0});
  refuse({&info, 0, ~0ull, 2, 0});
  info.dtype = static_cast<DType>(200);
  refuse({&info, 0, 0, 16, 0});
  info.dtype = DType::kF32;
  info.shape = {-4};
  refuse({&info, 0, 0, 16, 0});
  info.shape = {1ll << 40, 1ll << 40};
  refuse({&info, 0, 0, 16, 0});
}

}  // namespace
}  // namespace ckpt::native
