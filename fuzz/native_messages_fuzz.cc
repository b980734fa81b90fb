// The input is a message of the native wire.
#include <span>
#include <variant>

#include "require.h"
#include "worker/bucket_loader.h"
#include "worker/native_messages.h"

namespace ckpt::native {
namespace {

constexpr std::uint64_t kRingBytes = 1 << 20;

/// What check_bucket() lets through can be read without leaving the ring.
void check_places(const Bucket& bucket) {
  if (!check_bucket(bucket, kRingBytes).is_ok()) return;
  for (const Entry& entry : bucket.entries) {
    FUZZ_REQUIRE(entry.ring_offset <= kRingBytes);
    FUZZ_REQUIRE(entry.bytes <= kRingBytes - entry.ring_offset);
    FUZZ_REQUIRE(entry.bytes == entry.info.bytes);
  }
}

void test(std::span<const std::byte> input) {
  const Result<Message> message = decode(input);
  if (!message.is_ok()) {
    FUZZ_REQUIRE(message.status().code() == StatusCode::kProtocol);
    FUZZ_REQUIRE(!message.status().message().empty());
    return;
  }
  if (const auto* bucket = std::get_if<Bucket>(&message->body)) check_places(*bucket);
  const Bytes encoded = encode(message->epoch, message->body);
  const Result<Message> again = decode(encoded);
  FUZZ_REQUIRE(again.is_ok());
  FUZZ_REQUIRE(again->epoch == message->epoch);
  FUZZ_REQUIRE(again->body.index() == message->body.index());
  FUZZ_REQUIRE(encode(again->epoch, again->body) == encoded);
}

}  // namespace
}  // namespace ckpt::native

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ckpt::native::test(std::as_bytes(std::span(data, size)));
  return 0;
}
