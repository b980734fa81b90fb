// Bytes from anywhere, as a message between two transports: never a crash; what is taken survives
// being sent on.
#include <cstdint>

#include "require.h"
#include "transport/ucx/message.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = ckpt::ucx::decode_message(std::as_bytes(std::span(data, size)));
  if (!message.is_ok()) {
    FUZZ_REQUIRE(message.status().code() == ckpt::StatusCode::kProtocol);
    return 0;
  }
  const auto encoded = ckpt::ucx::encode_message(*message);
  const auto again = ckpt::ucx::decode_message(encoded);
  FUZZ_REQUIRE(again.is_ok());
  FUZZ_REQUIRE(again->connection == message->connection && again->sequence == message->sequence);
  FUZZ_REQUIRE(again->body.index() == message->body.index());
  FUZZ_REQUIRE(ckpt::ucx::encode_message(*again) == encoded);
  return 0;
}
