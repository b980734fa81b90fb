#include "checkpoint/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/parallel.h"
#include "checkpoint/test_folder.h"

namespace ckpt {
namespace {

using testing::HasSubstr;

std::vector<TensorInfo> two_tensors() {
  return {make_tensor_info("a", DType::kU8, {5}).value(),
          make_tensor_info("b", DType::kF32, {2}).value()};
}

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(SafetensorsWriter, AppendsInPieces) {
  const TestFolder folder;
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::create(folder.file("m.safetensors"), two_tensors(), {{"k", "v"}});
  ASSERT_TRUE(writer.is_ok()) << writer.status().to_string();
  for (const char* piece : {"123", "45ab", "", "cdefgh"})
    ASSERT_TRUE(writer->append(bytes(piece)).is_ok());
  ASSERT_TRUE(writer->finish().is_ok());

  const Result<SafetensorsHeader> header = read_safetensors_header(folder.file("m.safetensors"));
  ASSERT_TRUE(header.is_ok()) << header.status().to_string();
  EXPECT_EQ(header->metadata.at("k"), "v");
  EXPECT_EQ(header->tensors.at(1).info, two_tensors()[1]);
  EXPECT_EQ(header->data_start % 8, 0u);
  EXPECT_EQ(folder.read("m.safetensors").substr(header->data_start), "12345abcdefgh");
}

TEST(SafetensorsWriter, WritesAnywhereFromManyThreads) {
  const TestFolder folder;
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 50; ++i) {
    tensors.push_back(make_tensor_info(concat("t", i), DType::kU8, {100}).value());
  }
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::create(folder.file("m.safetensors"), tensors);
  ASSERT_TRUE(writer.is_ok());
  ThreadPool pool(4);
  ASSERT_TRUE(pool.for_each(100,
                            [&](std::size_t i) {
                              const std::string half(50, static_cast<char>(i + 20));
                              return writer->write(49 - i / 2, i % 2 * 50, bytes(half));
                            })
                  .is_ok());
  ASSERT_TRUE(writer->finish().is_ok());
  const std::string file = folder.read("m.safetensors");
  const std::string data = file.substr(file.size() - 5000);
  for (std::size_t i = 0; i < 5000; ++i) {
    ASSERT_EQ(data[i], static_cast<char>((49 - i / 100) * 2 + i % 100 / 50 + 20)) << i;
  }
}

TEST(SafetensorsWriter, KeepsTheOldFileUntilTheNewOneIsWhole) {
  const TestFolder folder;
  folder.write("m.safetensors", "old");
  {
    Result<SafetensorsWriter> writer =
        SafetensorsWriter::create(folder.file("m.safetensors"), two_tensors());
    ASSERT_TRUE(writer.is_ok());
    ASSERT_TRUE(writer->append(bytes("123")).is_ok());
    const Status status = writer->finish();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("3 of 13 bytes"));
    EXPECT_EQ(folder.read("m.safetensors"), "old");
  }
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path()))
    ++files;
  EXPECT_EQ(files, 1u) << "the unfinished file must be gone";
}

TEST(SafetensorsWriter, RefusesBytesOutsideTheTensors) {
  const TestFolder folder;
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::create(folder.file("m.safetensors"), two_tensors());
  ASSERT_TRUE(writer.is_ok());
  EXPECT_FALSE(writer->append(bytes("12345678901234")).is_ok());
  EXPECT_FALSE(writer->write(0, 3, bytes("123")).is_ok());
  EXPECT_FALSE(writer->write(0, 6, bytes("")).is_ok());
  EXPECT_FALSE(writer->write(2, 0, bytes("1")).is_ok());
}

TEST(SafetensorsWriter, RefusesNamesThatAFileCannotHold) {
  const TestFolder folder;
  const auto refusal = [&](std::vector<std::string> names) {
    std::vector<TensorInfo> tensors;
    for (auto& name : names) tensors.push_back(make_tensor_info(name, DType::kU8, {1}).value());
    return SafetensorsWriter::create(folder.file("m"), tensors).status().message();
  };
  EXPECT_THAT(refusal({"a", "b", "a"}), HasSubstr("twice"));
  EXPECT_THAT(refusal({"__metadata__"}), HasSubstr("reserves"));
  EXPECT_THAT(refusal({"\xff"}), HasSubstr("UTF-8"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_FALSE(SafetensorsWriter::create(folder.file("no/such/m"), two_tensors()).is_ok());
}

TEST(SafetensorsWriter, WritesAFileWithoutTensors) {
  const TestFolder folder;
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(folder.file("m.safetensors"), {});
  ASSERT_TRUE(writer.is_ok());
  ASSERT_TRUE(writer->finish().is_ok());
  EXPECT_TRUE(read_safetensors_header(folder.file("m.safetensors")).is_ok());
}

}  // namespace
}  // namespace ckpt
