// Bytes from anywhere, as a transport descriptor, and behind a seal of their own, as a careful
// liar would send them: never a crash; what is taken survives being written again.
#include <cstdint>
#include <cstring>
#include <vector>

#include "require.h"
#include "transport/descriptor.h"
#include "transport/seal.h"

namespace {

void test(std::span<const std::byte> bytes) {
  const auto descriptor = ckpt::decode_descriptor(bytes, "ucx");
  if (!descriptor.is_ok()) {
    FUZZ_REQUIRE(descriptor.status().code() == ckpt::StatusCode::kProtocol);
    return;
  }
  const auto again = ckpt::decode_descriptor(ckpt::encode_descriptor(*descriptor), "ucx");
  FUZZ_REQUIRE(again.is_ok() && *again == *descriptor);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  test(input);
  std::vector<std::byte> sealed(input.begin(), input.end());
  const std::uint64_t seal = ckpt::seal_of(input);
  const auto* const begin = reinterpret_cast<const std::byte*>(&seal);
  sealed.insert(sealed.end(), begin, begin + sizeof(seal));
  test(sealed);
  return 0;
}
