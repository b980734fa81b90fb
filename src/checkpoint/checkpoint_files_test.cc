#include "checkpoint/checkpoint_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/strings.h"
#include "checkpoint/checkpoint_index.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/test_folder.h"

namespace ckpt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A file whose tensors are the named ones, of one byte each: the last letter of the name.
void write_file(const TestFolder& folder, const std::string& name,
                const std::vector<std::string>& tensors) {
  std::vector<TensorInfo> infos;
  std::string data;
  for (const auto& tensor : tensors) {
    infos.push_back(make_tensor_info(tensor, DType::kU8, {1}).value());
    data += tensor.back();
  }
  folder.write(name, encode_safetensors_header(infos, {}).value() + data);
}

std::vector<std::string> names(const CheckpointFiles& files) {
  std::vector<std::string> out;
  for (const auto& tensor : files.tensors) out.push_back(tensor.name);
  return out;
}

std::string refusal(const std::string& path) {
  const Result<CheckpointFiles> files = scan_checkpoint(path);
  EXPECT_FALSE(files.is_ok());
  return files.status().message();
}

TEST(ScanCheckpoint, OneFile) {
  const TestFolder folder;
  write_file(folder, "m.safetensors", {"a", "b"});
  const Result<CheckpointFiles> files = scan_checkpoint(folder.file("m.safetensors"));
  ASSERT_TRUE(files.is_ok()) << files.status().to_string();
  EXPECT_EQ(files->total_bytes(), 2u);
  EXPECT_EQ(files->files.at(0).bytes, std::filesystem::file_size(folder.file("m.safetensors")));
  EXPECT_EQ(folder.read("m.safetensors").at(files->offset_of.at(1)), 'b');
}

TEST(ScanCheckpoint, FolderWithoutIndexIsSortedAndSkipsDotFiles) {
  const TestFolder folder;
  write_file(folder, "b.safetensors", {"b"});
  write_file(folder, "a.safetensors", {"z", "a"});
  write_file(folder, ".c.safetensors", {"c"});
  write_file(folder, "sub/d.safetensors", {"d"});
  folder.write("e.safetensors/x", "a folder with the name of a file");
  folder.write("config.json", "{}");
  const Result<CheckpointFiles> files = scan_checkpoint(folder.path() + "//");
  ASSERT_TRUE(files.is_ok()) << files.status().to_string();
  EXPECT_THAT(names(*files), ElementsAre("z", "a", "b"));
  EXPECT_THAT(files->file_of, ElementsAre(0, 0, 1));
  EXPECT_EQ(files->files.at(1).path, folder.file("b.safetensors"));
}

TEST(ScanCheckpoint, OneNameInTwoFilesIsRefusedWithoutIndex) {
  const TestFolder folder;
  write_file(folder, "a.safetensors", {"x", "y"});
  write_file(folder, "b.safetensors", {"y"});
  const std::string message = refusal(folder.path());
  EXPECT_THAT(message, HasSubstr("tensor \"y\""));
  EXPECT_THAT(message, HasSubstr("a.safetensors"));
  EXPECT_THAT(message, HasSubstr("b.safetensors"));
}

TEST(ScanCheckpoint, IndexDecides) {
  const TestFolder folder;
  write_file(folder, "a.safetensors", {"x", "y", "unlisted"});
  write_file(folder, "sub/b.safetensors", {"x", "y"});
  write_file(folder, "old.safetensors", {"x"});
  folder.write(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":2},"weight_map":{"y":"./sub/b.safetensors","x":"a.safetensors"}})");
  const Result<CheckpointFiles> files = scan_checkpoint(folder.path());
  ASSERT_TRUE(files.is_ok()) << files.status().to_string();
  EXPECT_THAT(names(*files), ElementsAre("x", "y"));
  EXPECT_EQ(files->files.size(), 2u);
  EXPECT_EQ(files->files.at(files->file_of.at(1)).path, folder.file("sub/b.safetensors"));
  EXPECT_EQ(folder.read("sub/b.safetensors").at(files->offset_of.at(1)), 'y');
  EXPECT_EQ(files->left_out, 3u);
}

TEST(ScanCheckpoint, IndexErrorsNameFileAndTensor) {
  const TestFolder folder;
  write_file(folder, "a.safetensors", {"x"});
  const auto with_map = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", concat("{\"weight_map\":", map, "}"));
    return refusal(folder.path());
  };
  EXPECT_THAT(with_map(R"({"x":"a.safetensors","y":"a.safetensors"})"),
              HasSubstr("a.safetensors: tensor \"y\" is not in this file"));
  EXPECT_THAT(with_map(R"({"x":"b.safetensors"})"), HasSubstr("b.safetensors: no such file"));
  EXPECT_THAT(with_map(R"({"x":"../a.safetensors"})"), HasSubstr("leaves the folder"));
  EXPECT_THAT(with_map(R"({"x":"s/../../a.safetensors"})"), HasSubstr("leaves the folder"));
  EXPECT_THAT(with_map(R"({"x":"/etc/passwd"})"), HasSubstr("is absolute"));
  EXPECT_THAT(with_map(R"({"x":""})"), HasSubstr("names no file"));
  EXPECT_THAT(with_map(R"({"x":"a\u0000b"})"), HasSubstr("names no file"));
  EXPECT_THAT(with_map(R"({"x":"sub/"})"), HasSubstr("names a folder"));
  EXPECT_THAT(with_map(R"({"x":1})"), HasSubstr("not a string"));
  EXPECT_THAT(with_map(R"({"x":"a.safetensors","\u0078":"a.safetensors"})"), HasSubstr("twice"));
  EXPECT_THAT(with_map("[]"), HasSubstr("not an object"));
  EXPECT_THAT(with_map("{}}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(with_map("{},\"weight_map\":{}"), HasSubstr("twice"));
  EXPECT_THAT(with_map(R"({"x":"a.safetensors")"), HasSubstr("model.safetensors.index.json"));
  folder.write("model.safetensors.index.json", "{\"metadata\":{}}");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("no weight_map"));
}

TEST(ScanCheckpoint, TwoIndexesAreRefused) {
  const TestFolder folder;
  folder.write("a.safetensors.index.json", "{}");
  folder.write("b.safetensors.index.json", "{}");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("several indexes (a.safetensors.index.json, b."));
}

TEST(ScanCheckpoint, NothingThere) {
  const TestFolder folder;
  EXPECT_THAT(refusal(folder.path()), HasSubstr("no .safetensors file"));
  EXPECT_THAT(refusal(folder.file("none")), HasSubstr("no such file or folder"));
}

TEST(ScanCheckpoint, OfSeveralBadFilesTheFirstIsTold) {
  const TestFolder folder;
  for (char name = 'a'; name <= 'z'; ++name) {
    folder.write(std::string(1, name) + ".safetensors", "bad");
  }
  for (int round = 0; round < 20; ++round) {
    EXPECT_THAT(refusal(folder.path()), HasSubstr("/a.safetensors: "));
  }
}

TEST(ScanCheckpoint, ABrokenLinkIsAnErrorAndALinkIsAFile) {
  const TestFolder folder;
  write_file(folder, "blobs/1", {"x"});
  std::filesystem::create_symlink("blobs/1", folder.file("m.safetensors"));
  EXPECT_TRUE(scan_checkpoint(folder.path()).is_ok());
  std::filesystem::create_symlink("blobs/2", folder.file("n.safetensors"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("n.safetensors: no such file"));
}

TEST(OpenFiles, KeepsTheGivenOrder) {
  const TestFolder folder;
  write_file(folder, "b.safetensors", {"b"});
  write_file(folder, "a.safetensors", {"a"});
  const auto files = open_files({folder.file("b.safetensors"), folder.file("a.safetensors")});
  ASSERT_TRUE(files.is_ok());
  EXPECT_THAT(names(*files), ElementsAre("b", "a"));
  EXPECT_FALSE(open_files({folder.file("b.safetensors"), folder.file("b.safetensors")}).is_ok());
  EXPECT_TRUE(open_files({})->tensors.empty());
}

TEST(CheckpointIndex, FilesAreSortedAndCountedOnce) {
  const std::string json =
      R"({"weight_map":{"a":"2","b":"1","c":"./2","d":"x/./1"},"other":[1,{"k":null}]})";
  const auto index = parse_checkpoint_index(std::as_bytes(std::span(json)));
  ASSERT_TRUE(index.is_ok()) << index.status().to_string();
  EXPECT_THAT(index->files, ElementsAre("1", "2", "x/1"));
  std::vector<std::uint32_t> numbers;
  for (const auto& entry : index->entries) numbers.push_back(entry.file);
  EXPECT_THAT(numbers, ElementsAre(1, 0, 1, 2));
}

}  // namespace
}  // namespace ckpt
