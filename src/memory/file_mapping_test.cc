#include "memory/file_mapping.h"

#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/host.h"
#include "base/strings.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

class FileMappingTest : public testing::Test {
 protected:
  FileMappingTest()
      : shm_(concat("/dev/shm/ckpt-mapping-test-", random_id())),
        disk_(fs::current_path() / concat("ckpt-mapping-test-", random_id())) {
    fs::create_directory(shm_);
    fs::create_directory(disk_);
  }
  ~FileMappingTest() override {
    fs::remove_all(shm_);
    fs::remove_all(disk_);
  }
  static std::string write(const fs::path& path, std::string_view text) {
    std::ofstream(path) << text;
    return path.string();
  }

  const fs::path shm_, disk_;
};

TEST_F(FileMappingTest, MapsAFileAndKeepsItsMemoryWithoutTheName) {
  const std::string path = write(shm_ / "a.safetensors", "0123456789");
  auto mapping = FileMapping::map(path);
  ASSERT_TRUE(mapping.is_ok()) << mapping.status().to_string();
  EXPECT_EQ((*mapping)->bytes(), 10u);
  EXPECT_EQ((*mapping)->path(), path);
  EXPECT_TRUE(fs::exists(path));
  ASSERT_TRUE((*mapping)->remove_file().is_ok());
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE((*mapping)->remove_file().is_ok());
  EXPECT_EQ((*mapping)->data()[9], std::byte('9'));
}

// Root may write everything, anybody else may not write this.
class AsNobody {
 public:
  AsNobody() : user_(::setfsuid(65534)) {}
  ~AsNobody() { ::setfsuid(static_cast<uid_t>(user_)); }

 private:
  const int user_;
};

TEST_F(FileMappingTest, WhatMayOnlyBeReadIsNotMapped) {
  const std::string path = write(shm_ / "a", "x");
  EXPECT_TRUE(*FileMapping::possible(path));
  ASSERT_EQ(::chmod(path.c_str(), 0444), 0);
  ASSERT_EQ(::chmod(shm_.c_str(), 0755), 0);
  const AsNobody nobody;
  const auto possible = FileMapping::possible(path);
  ASSERT_TRUE(possible.is_ok()) << possible.status().to_string();
  EXPECT_FALSE(*possible);
}

TEST_F(FileMappingTest, DecidesOnTheResolvedPathAndFileSystem) {
  const std::string in_memory = write(shm_ / "a", "x");
  const std::string on_disk = write(disk_ / "a", "x");
  fs::create_symlink(on_disk, shm_ / "link-to-disk");
  fs::create_symlink(in_memory, disk_ / "link-to-memory");
  EXPECT_TRUE(*FileMapping::possible(in_memory));
  EXPECT_TRUE(*FileMapping::possible(disk_ / "link-to-memory"));
  EXPECT_FALSE(*FileMapping::possible(on_disk));
  EXPECT_FALSE(*FileMapping::possible(shm_ / "link-to-disk"));
  EXPECT_FALSE(*FileMapping::possible(shm_));
  ASSERT_EQ(::mkfifo((shm_ / "pipe").c_str(), 0600), 0);
  EXPECT_FALSE(*FileMapping::possible(shm_ / "pipe"));
  EXPECT_EQ(FileMapping::possible(shm_ / "none").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(FileMapping::map(on_disk).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(FileMappingTest, RemovesTheFileBehindALinkNotTheLink) {
  const std::string path = write(shm_ / "a", "x");
  fs::create_symlink(path, disk_ / "link");
  const auto mapping = *FileMapping::map(disk_ / "link");
  ASSERT_TRUE(mapping->remove_file().is_ok());
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::is_symlink(disk_ / "link"));
}

TEST_F(FileMappingTest, LeavesAReplacedFileAlone) {
  const std::string path = write(shm_ / "a", "old");
  const auto mapping = *FileMapping::map(path);
  write(shm_ / "b", "new");
  fs::rename(shm_ / "b", path);
  ASSERT_TRUE(mapping->remove_file().is_ok());
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(FileMappingTest, RefusesAnEmptyFile) {
  EXPECT_EQ(FileMapping::map(write(shm_ / "a", "")).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ckpt
