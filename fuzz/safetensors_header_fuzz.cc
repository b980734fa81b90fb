// The input is a whole safetensors file.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/safetensors_writer.h"
#include "require.h"

namespace ckpt {
namespace {

void check_invariants(const SafetensorsHeader& header) {
  std::set<std::string> names;
  std::uint64_t end = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    FUZZ_REQUIRE(entry.begin == end);
    end += entry.info.bytes;
    FUZZ_REQUIRE(end >= entry.begin);
    FUZZ_REQUIRE(names.insert(entry.info.name).second);
    const auto again = make_tensor_info(entry.info.name, entry.info.dtype, entry.info.shape);
    FUZZ_REQUIRE(again.is_ok() && *again == entry.info);
  }
  FUZZ_REQUIRE(end == header.data_bytes);
}

void check_round_trip(const SafetensorsHeader& header) {
  std::vector<TensorInfo> tensors;
  for (const SafetensorsEntry& entry : header.tensors) tensors.push_back(entry.info);
  const Result<std::string> text = encode_safetensors_header(tensors, header.metadata);
  FUZZ_REQUIRE(text.is_ok());
  const auto bytes = std::as_bytes(std::span(*text));
  const auto json_bytes = safetensors_json_bytes(
      bytes.first(std::min<std::size_t>(bytes.size(), 64)), bytes.size() + header.data_bytes);
  FUZZ_REQUIRE(json_bytes.is_ok() && *json_bytes == bytes.size() - kSafetensorsPrefixBytes);
  const auto again =
      parse_safetensors_header(bytes.subspan(kSafetensorsPrefixBytes), header.data_bytes);
  FUZZ_REQUIRE(again.is_ok());
  FUZZ_REQUIRE(again->tensors == header.tensors);
  FUZZ_REQUIRE(again->metadata == header.metadata);
}

void test(std::span<const std::byte> file) {
  const auto json_bytes =
      safetensors_json_bytes(file.first(std::min<std::size_t>(file.size(), 64)), file.size());
  if (!json_bytes.is_ok()) return;
  const auto json = file.subspan(kSafetensorsPrefixBytes, *json_bytes);
  const Result<SafetensorsHeader> header =
      parse_safetensors_header(json, file.size() - kSafetensorsPrefixBytes - json.size());
  if (!header.is_ok()) {
    FUZZ_REQUIRE(!header.status().message().empty());
    return;
  }
  // A second opinion on what JSON is.
  const auto* text = reinterpret_cast<const char*>(json.data());
  FUZZ_REQUIRE(nlohmann::json::accept(text, text + json.size()));
  check_invariants(*header);
  check_round_trip(*header);
}

}  // namespace
}  // namespace ckpt

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ckpt::test(std::as_bytes(std::span(data, size)));
  return 0;
}
