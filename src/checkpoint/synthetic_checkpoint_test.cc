#include "checkpoint/synthetic_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/model_shapes.h"
#include "checkpoint/test_folder.h"

namespace ckpt {
namespace {

std::string content(const TensorInfo& tensor, std::uint64_t seed) {
  std::string bytes(tensor.bytes, '\0');
  fill_synthetic(std::as_writable_bytes(std::span(bytes)), seed, tensor, 0);
  return bytes;
}

TEST(FillSynthetic, IsAFunctionOfThePosition) {
  const TensorInfo tensor = make_tensor_info("w", DType::kBF16, {1000}).value();
  const std::string whole = content(tensor, 1);
  for (std::size_t begin = 0; begin < 20; ++begin) {
    for (std::size_t size = 0; size < 40; ++size) {
      std::string part(size, '\0');
      fill_synthetic(std::as_writable_bytes(std::span(part)), 1, tensor, begin);
      ASSERT_EQ(part, whole.substr(begin, size)) << begin << " " << size;
    }
  }
}

TEST(FillSynthetic, DependsOnSeedAndName) {
  const TensorInfo a = make_tensor_info("a", DType::kU8, {64}).value();
  const TensorInfo b = make_tensor_info("b", DType::kU8, {64}).value();
  EXPECT_NE(content(a, 1), content(a, 2));
  EXPECT_NE(content(a, 1), content(b, 1));
}

TEST(FillSynthetic, StaysTheSameForEver) {
  const TensorInfo tensor = make_tensor_info("model.norm.weight", DType::kU64, {2}).value();
  std::uint64_t words[2];
  std::memcpy(words, content(tensor, 42).data(), sizeof(words));
  EXPECT_THAT(words, testing::ElementsAre(0xad93993b3ce4134bu, 0xc6fa4bdeedc887f7u));
}

TEST(FillSynthetic, FloatsAreFiniteAndBoolsAreBools) {
  const std::string singles = content(make_tensor_info("w", DType::kF32, {100'000}).value(), 3);
  for (std::size_t i = 0; i < singles.size(); i += 4) {
    float value;
    std::memcpy(&value, singles.data() + i, sizeof(value));
    ASSERT_TRUE(std::isfinite(value));
  }
  for (const char c : content(make_tensor_info("w", DType::kF8E4M3, {100'000}).value(), 3)) {
    ASSERT_NE(c & 0x7f, 0x7f);
  }
  for (const char c : content(make_tensor_info("w", DType::kBool, {1000}).value(), 3)) {
    ASSERT_LE(static_cast<unsigned char>(c), 1);
  }
}

TEST(SyntheticCheckpoint, IsReadBackByteForByte) {
  const TestFolder folder;
  const auto tensors =
      model_tensors("deepseek-v3.1", {.layers = 4, .experts = 2, .shrink = 32}).value();
  ASSERT_TRUE(write_synthetic_checkpoint(folder.path(), tensors,
                                         {.seed = 5, .shard_bytes = 1 << 20, .threads = 3})
                  .is_ok());
  const Result<CheckpointFiles> files = scan_checkpoint(folder.path());
  ASSERT_TRUE(files.is_ok()) << files.status().to_string();
  EXPECT_EQ(files->tensors, tensors) << "shards keep the order of the model";
  ASSERT_GT(files->files.size(), 3u);
  EXPECT_THAT(files->files[0].path, testing::EndsWith(concat("/model-00001-of-0000",
                                                             files->files.size(), ".safetensors")));
  EXPECT_EQ(files->left_out, 0u);
  std::vector<std::string> data;
  for (const auto& file : files->files) {
    data.push_back(folder.read(std::filesystem::path(file.path).filename()));
    EXPECT_EQ(data.back().size(), file.bytes);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_EQ(data[files->file_of[i]].compare(files->offset_of[i], tensors[i].bytes,
                                              content(tensors[i], 5)),
              0)
        << tensors[i].name;
  }
}

TEST(SyntheticCheckpoint, DoesNotDependOnThreads) {
  const TestFolder one, four;
  const auto tensors = model_tensors("qwen3-0.6b", {.layers = 2, .shrink = 32}).value();
  ASSERT_TRUE(write_synthetic_checkpoint(one.path(), tensors, {.threads = 1}).is_ok());
  ASSERT_TRUE(write_synthetic_checkpoint(four.file("new/folder"), tensors, {.threads = 4}).is_ok());
  const std::string name = "model-00001-of-00001.safetensors";
  EXPECT_EQ(one.read(name), four.read("new/folder/" + name));
}

TEST(SyntheticCheckpoint, LeavesAnExistingCheckpointAlone) {
  const TestFolder folder;
  folder.write("m.safetensors", "precious");
  const auto tensors = model_tensors("qwen3-0.6b", {.layers = 1, .shrink = 64}).value();
  const Status status = write_synthetic_checkpoint(folder.path(), tensors);
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), testing::HasSubstr("m.safetensors"));
}

}  // namespace
}  // namespace ckpt
