// Text from anywhere, as a metas file: never a crash; what is taken survives being written again.
#include <cstdint>

#include "parameter_server/metas_json.h"
#include "require.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto metas = ckpt::metas_from_json(text);
  if (!metas.is_ok()) return 0;
  const auto again = ckpt::metas_from_json(ckpt::metas_to_json(*metas));
  FUZZ_REQUIRE(again.is_ok() && again->ranks.size() == metas->ranks.size());
  for (std::size_t rank = 0; rank < metas->ranks.size(); ++rank) {
    FUZZ_REQUIRE(again->ranks[rank].instance == metas->ranks[rank].instance);
  }
  return 0;
}
