// The input is an index file.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "checkpoint/checkpoint_index.h"
#include "require.h"

namespace ckpt {
namespace {

void check_invariants(const CheckpointIndex& index) {
  for (std::size_t i = 0; i < index.files.size(); ++i) {
    const std::filesystem::path file(index.files[i]);
    FUZZ_REQUIRE(i == 0 || index.files[i - 1] < index.files[i]);
    FUZZ_REQUIRE(!file.empty() && file.is_relative() && file.has_filename());
    FUZZ_REQUIRE(index.files[i].find('\0') == std::string::npos);
    for (const auto& part : file) FUZZ_REQUIRE(part != ".." && part != ".");
  }
  std::set<std::string> names;
  std::set<std::uint32_t> files;
  for (const auto& entry : index.entries) {
    FUZZ_REQUIRE(names.insert(entry.tensor).second);
    FUZZ_REQUIRE(entry.file < index.files.size());
    files.insert(entry.file);
  }
  FUZZ_REQUIRE(files.size() == index.files.size());
}

void check_round_trip(const CheckpointIndex& index) {
  nlohmann::ordered_json json;
  json["weight_map"] = nlohmann::ordered_json::object();
  auto& map = json["weight_map"].get_ref<nlohmann::ordered_json::object_t&>();
  for (const auto& entry : index.entries) map.emplace_back(entry.tensor, index.files[entry.file]);
  const std::string text = json.dump();
  const auto again = parse_checkpoint_index(std::as_bytes(std::span(text)));
  FUZZ_REQUIRE(again.is_ok());
  FUZZ_REQUIRE(*again == index);
}

void test(std::span<const std::byte> json) {
  const Result<CheckpointIndex> index = parse_checkpoint_index(json);
  if (!index.is_ok()) {
    FUZZ_REQUIRE(!index.status().message().empty());
    return;
  }
  // A second opinion on what JSON is.
  const auto* text = reinterpret_cast<const char*>(json.data());
  FUZZ_REQUIRE(nlohmann::json::accept(text, text + json.size()));
  check_invariants(*index);
  check_round_trip(*index);
}

}  // namespace
}  // namespace ckpt

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ckpt::test(std::as_bytes(std::span(data, size)));
  return 0;
}
