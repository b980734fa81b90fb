#include "checkpoint/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/strings.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/test_folder.h"

namespace ckpt {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

Result<SafetensorsHeader> parse(const std::string& json, std::uint64_t data_bytes) {
  return parse_safetensors_header(std::as_bytes(std::span(json)), data_bytes);
}

std::string u8(std::string_view name, std::uint64_t begin, std::uint64_t end,
               std::string_view more = "") {
  return concat("\"", name, "\":{\"dtype\":\"U8\",\"shape\":[", end - begin, "],\"data_offsets\":[",
                begin, ",", end, "]", more, "}");
}

void expect_refused(const std::string& json, std::uint64_t data_bytes, const std::string& why) {
  const Result<SafetensorsHeader> header = parse(json, data_bytes);
  ASSERT_FALSE(header.is_ok()) << json;
  EXPECT_THAT(header.status().message(), HasSubstr(why)) << json;
}

TEST(SafetensorsHeader, SortsByOffsetWithEmptyTensorsFirst) {
  const Result<SafetensorsHeader> header = parse(
      concat("{", u8("c", 5, 9), ",", u8("a", 0, 5), ",", u8("e1", 5, 5), ",", u8("e0", 5, 5), "}"),
      9);
  ASSERT_TRUE(header.is_ok()) << header.status().to_string();
  std::vector<std::string> names;
  for (const auto& entry : header->tensors) names.push_back(entry.info.name);
  EXPECT_THAT(names, testing::ElementsAre("a", "e0", "e1", "c"));
  EXPECT_EQ(header->tensors[3].begin, 5u);
  EXPECT_EQ(header->data_start % 8,
            (8 + u8("c", 5, 9).size() + u8("a", 0, 5).size() + 2 * u8("e1", 5, 5).size() + 5) % 8);
}

TEST(SafetensorsHeader, ReadsMetadataAndEscapes) {
  const Result<SafetensorsHeader> header = parse(
      "{\"__metadata__\":{\"a\\n\":\"\\u00e9\"},\"\\u0061\":{\"d\\u0074ype\":\"F32\","
      "\"shape\":[],\"data_offsets\":[0,4]}}",
      4);
  ASSERT_TRUE(header.is_ok()) << header.status().to_string();
  EXPECT_EQ(header->metadata.at("a\n"), "\xc3\xa9");
  EXPECT_EQ(header->tensors.at(0).info.name, "a");
}

TEST(SafetensorsHeader, RefusesDuplicatesInEveryForm) {
  expect_refused(concat("{", u8("a", 0, 1), ",", u8("\\u0061", 1, 2), "}"), 2,
                 "tensor \"a\": the name is there twice");
  expect_refused(concat("{", u8("a", 0, 0), ",", u8("a", 0, 0), "}"), 0, "twice");
  expect_refused("{\"__metadata__\":{},\"\\u005f_metadata__\":{}}", 0,
                 "__metadata__ is there twice");
  expect_refused("{\"__metadata__\":{\"k\":\"1\",\"\\u006b\":\"1\"}}", 0, "key \"k\"");
  expect_refused(concat("{", u8("a", 0, 1, ",\"dtype\":\"U8\""), "}"), 1, "dtype is there twice");
  expect_refused(concat("{", u8("a", 0, 1, ",\"shape\":[1]"), "}"), 1, "shape is there twice");
  expect_refused(concat("{", u8("a", 0, 1, ",\"data_offsets\":[0,1]"), "}"), 1, "twice");
}

TEST(SafetensorsHeader, ReadsIgnoredValuesToTheirEnd) {
  EXPECT_TRUE(
      parse(concat("{", u8("a", 0, 1, R"(,"x":{"y":[1.5,"s",true,null,{}]})"), "}"), 1).is_ok());
  for (const char* bad : {"[1,]", "{\"k\":}", "nul", "tru", "01", "1.", "\"\\x\"", "[1 2]", "{1:2}",
                          "\"\\ud800\"", "--1", "[}", "+1"}) {
    expect_refused(concat("{", u8("a", 0, 1, concat(",\"x\":", bad)), "}"), 1, "not valid JSON");
  }
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  expect_refused(concat("{", u8("a", 0, 1, concat(",\"x\":", deep)), "}"), 1, "nested deeper");
}

TEST(SafetensorsHeader, RefusesLoneSurrogates) {
  expect_refused(concat("{", u8("\\ud800", 0, 1), "}"), 1, "not valid JSON");
  expect_refused(concat("{", u8("\\udc00", 0, 1), "}"), 1, "not valid JSON");
  expect_refused("{\"__metadata__\":{\"k\":\"\\udfff\"}}", 0, "not valid JSON");
}

TEST(SafetensorsHeader, RefusesTextBehindTheObject) {
  for (const char* rest : {"}", "{}", "x", ",", "1", "\"\""}) {
    const std::string json = concat("{", u8("a", 0, 1), "}", rest);
    EXPECT_FALSE(parse(json, 1).is_ok()) << json;
  }
  EXPECT_TRUE(parse(concat("{", u8("a", 0, 1), "} \n\t\r "), 1).is_ok());
  EXPECT_FALSE(parse(concat("{", u8("a", 0, 1), "}") + std::string(3, '\0'), 1).is_ok());
}

TEST(SafetensorsHeader, NamesGapOverlapAndLength) {
  expect_refused(concat("{", u8("a", 0, 2), ",", u8("b", 3, 4), "}"), 4, "(gap)");
  expect_refused(concat("{", u8("a", 0, 2), ",", u8("b", 1, 4), "}"), 4, "(overlap)");
  expect_refused(concat("{", u8("a", 0, 2), "}"), 1, "it is cut short");
  expect_refused(concat("{", u8("a", 0, 2), "}"), 3, "bytes behind them");
}

TEST(SafetensorsHeader, NumbersAreWholeAndFit64Bits) {
  const auto with_dim = [](std::string_view dim) {
    return concat("{\"t\":{\"dtype\":\"U8\",\"shape\":[0,", dim, "],\"data_offsets\":[0,0]}}");
  };
  EXPECT_TRUE(parse(with_dim("9223372036854775807"), 0).is_ok());
  expect_refused(with_dim("9223372036854775808"), 0, "tensor \"t\": shape has a dimension of");
  for (const char* dim : {"18446744073709551616", "1e2", "-1", "-0", "01", "null", "[1]", "1.0"}) {
    expect_refused(with_dim(dim), 0, "tensor \"t\"");
  }
  expect_refused(
      "{\"t\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[18446744073709551615,0]}}", 0,
      "end at 0 before");
}

TEST(SafetensorsHeader, NamesTensorAndDType) {
  const Result<SafetensorsHeader> header =
      parse("{\"w\":{\"dtype\":\"Q4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
  EXPECT_EQ(header.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(header.status().message(), StartsWith("tensor \"w\": dtype \"Q4\""));
}

TEST(SafetensorsFile, SaysWhatElseItIs) {
  const TestFolder folder;
  const std::map<std::string, std::string> texts = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"},
      {std::string("PK\x03\x04\0\0\0\0\0\0", 10), "zip file"},
      {"\x80\x02}q\x01(X\x04more", "pickle"},
      {"GGUF\x03\x01\x01\x01\x01\x01", "GGUF"},
      {"<!DOCTYPE html>", "web page"},
      {"1234", "too short"},
  };
  for (const auto& [text, advice] : texts) {
    folder.write("x.safetensors", text);
    const Result<SafetensorsHeader> header = read_safetensors_header(folder.file("x.safetensors"));
    EXPECT_THAT(header.status().message(), HasSubstr(advice));
    EXPECT_THAT(header.status().message(), StartsWith(folder.file("x.safetensors")));
  }
  EXPECT_EQ(read_safetensors_header(folder.file("none")).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(read_safetensors_header(folder.path()).status().message(), HasSubstr("regular file"));
}

TEST(SafetensorsFile, ALengthThatLooksLikeAMagicNumberIsStillALength) {
  // 'P' 'K' 3 4 0 0 0 0 is the length 67,324,752.
  std::string first("PK\x03\x04\0\0\0\0", 8);
  const auto length = safetensors_json_bytes(std::as_bytes(std::span(first)), 1'000'000'000);
  ASSERT_TRUE(length.is_ok()) << length.status().to_string();
  EXPECT_EQ(*length, 0x04034b50u);
}

/// What the encoder writes, the parser reads: random tensors of every dtype.
TEST(SafetensorsHeader, RoundTrips) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<TensorInfo> tensors;
    std::uint64_t total = 0;
    for (std::uint64_t i = 0, count = random() % 40; i < count; ++i) {
      std::vector<std::int64_t> shape(random() % 4);
      for (auto& dim : shape) dim = static_cast<std::int64_t>(random() % 5);
      auto info = make_tensor_info(concat("layer.", i, "\"\\\n\xc3\xa9"),
                                   static_cast<DType>(random() % 20), shape);
      if (!info.is_ok()) continue;  // F4 with half a byte
      total += info->bytes;
      tensors.push_back(std::move(info).value());
    }
    const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"a\tb", "\x01"}};
    const Result<std::string> text = encode_safetensors_header(tensors, metadata);
    ASSERT_TRUE(text.is_ok()) << text.status().to_string();
    EXPECT_EQ(text->size() % 8, 0u);
    const Result<SafetensorsHeader> header = parse(text->substr(8), total);
    ASSERT_TRUE(header.is_ok()) << header.status().to_string();
    EXPECT_EQ(header->data_start, text->size());
    EXPECT_EQ(header->metadata, metadata);
    // Empty tensors at one offset may change places, the others may not.
    std::vector<TensorInfo> read;
    for (const auto& entry : header->tensors) read.push_back(entry.info);
    EXPECT_THAT(read, testing::UnorderedElementsAreArray(tensors));
    const auto is_empty = [](const TensorInfo& tensor) { return tensor.bytes == 0; };
    std::erase_if(read, is_empty);
    std::erase_if(tensors, is_empty);
    EXPECT_EQ(read, tensors);
  }
}

}  // namespace
}  // namespace ckpt
