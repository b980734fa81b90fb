// Which NCCL is taken. What a process has loaded stays loaded, so each case has a process of its
// own; the libraries are stubs (testing/nccl_stub.cc) in folders of NCCL_STUBS.
#include "collective/nccl/nccl_api.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/strings.h"

namespace ckpt {
namespace {

std::string stub(const char* folder) { return concat(NCCL_STUBS, "/", folder); }

/// Ends this process; says what load_nccl gives.
[[noreturn]] void load_and_exit() {
  const auto api = load_nccl();
  int version = 0;
  if (api) (*api)->get_version(&version);
  const std::string text = api ? concat("version ", version) : api.status().to_string();
  std::fprintf(stderr, "%s\n", text.c_str());
  std::_Exit(api ? 0 : 1);
}

/// As a program that has loaded this one, for instance with torch.
[[noreturn]] void load_and_exit_beside(const char* folder) {
  const std::string path = stub(folder) + "/libnccl.so.2";
  if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) std::_Exit(2);
  load_and_exit();
}

class LoadNcclDeathTest : public ::testing::Test {
 protected:
  LoadNcclDeathTest() { ::testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
  ~LoadNcclDeathTest() override { ::unsetenv("LD_LIBRARY_PATH"); }
  /// Of the processes that are started from now on.
  static void set_search_path(const char* folder) {
    ::setenv("LD_LIBRARY_PATH", stub(folder).c_str(), 1);
  }
};

TEST_F(LoadNcclDeathTest, TakesWhatTheLoaderFinds) {
  set_search_path("another");
  EXPECT_EXIT(load_and_exit(), ::testing::ExitedWithCode(0), "version 22999");
}

TEST_F(LoadNcclDeathTest, TheCopyThatTheProcessHasLoadedWins) {
  set_search_path("another");
  EXPECT_EXIT(load_and_exit_beside("good"), ::testing::ExitedWithCode(0), "version 22800");
}

TEST_F(LoadNcclDeathTest, OneThatIsTooOldIsRefused) {
  EXPECT_EXIT(load_and_exit_beside("old"), ::testing::ExitedWithCode(1),
              "libnccl.so.2 has version 21602; 2.17 is the first");
}

TEST_F(LoadNcclDeathTest, OneThatLacksAFunctionIsRefusedByItsName) {
  EXPECT_EXIT(load_and_exit_beside("lacking"), ::testing::ExitedWithCode(1),
              "has no function ncclBroadcast");
}

TEST_F(LoadNcclDeathTest, NoneIsAnErrorThatSaysWhatToDo) {
  if (void* found = ::dlopen("libnccl.so.2", RTLD_LAZY)) {
    ::dlclose(found);
    GTEST_SKIP() << "this machine has an NCCL of its own";
  }
  EXPECT_EXIT(load_and_exit(), ::testing::ExitedWithCode(1),
              "LD_LIBRARY_PATH, or use --collective peer");
}

}  // namespace
}  // namespace ckpt
