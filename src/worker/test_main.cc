#include <gtest/gtest.h>

#include "worker/closer.h"
#include "worker/test_update.h"

int main(int argc, char** argv) {
  if (const int code = ckpt::test::run_role(argc, argv); code >= 0) return code;
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  // A closer that does not end is a hang of its own.
  const bool closed = ckpt::wait_for_closers("", ckpt::test::soon()).is_ok();
  return failed != 0 ? failed : (closed ? 0 : 1);
}
