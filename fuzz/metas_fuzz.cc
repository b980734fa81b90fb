// Bytes from anywhere, as metas: never a crash; what is taken survives being encoded again.
#include <cstdint>

#include "checkpoint/catalog.h"
#include "checkpoint/metas.h"
#include "require.h"

namespace {

void decode_as_layout(std::span<const std::byte> bytes) {
  const auto layout = ckpt::decode_layout(bytes);
  if (!layout.is_ok()) return;
  const auto again = ckpt::decode_layout(ckpt::encode_layout(*layout));
  FUZZ_REQUIRE(again.is_ok() && again->hash == layout->hash && again->tensors == layout->tensors);

  ckpt::Metas metas;
  ckpt::InstanceData instance;
  instance.layout_hash = layout->hash;
  instance.offsets.resize(layout->tensors.size());
  instance.digests.resize(layout->tensors.size());
  metas.ranks.push_back({std::make_shared<ckpt::Layout>(*layout), instance});
  const auto catalog = ckpt::Catalog::build(std::make_shared<ckpt::Metas>(metas));
  FUZZ_REQUIRE(!catalog.is_ok() || catalog->tensors().size() == layout->tensors.size());
}

void decode_as_instance_data(std::span<const std::byte> bytes) {
  const auto data = ckpt::decode_instance_data(bytes);
  if (!data.is_ok()) return;
  const auto again = ckpt::decode_instance_data(ckpt::encode_instance_data(*data));
  FUZZ_REQUIRE(again.is_ok() && *again == *data);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  decode_as_layout(bytes);
  decode_as_instance_data(bytes);
  return 0;
}
