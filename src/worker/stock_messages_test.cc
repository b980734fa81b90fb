#include "worker/stock_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/host.h"
#include "base/strings.h"
#include "worker/pickle_writer.h"

namespace ckpt {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

/// What Python makes of `pickle` equals what it makes of the golden file.
void expect_equal(const char* golden, const Bytes& pickle) {
  const std::string path = testing::TempDir() + "/ours-" + random_id() + ".pkl";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(pickle.data()),
             static_cast<std::streamsize>(pickle.size()));
  const std::string folder = CKPT_WIRE_DATA;
  const std::string command =
      concat("python3 ", folder, "/compare_pickles.py ", folder, "/", golden, " ", path);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  ::unlink(path.c_str());
}

RingEntry whole(const TensorInfo& info, std::uint64_t offset) {
  return {&info, offset, 0, info.bytes, 0};
}

TEST(StockMessagesTest, NoneIsTheGoldenOne) { expect_equal("none.pkl", pickle_none()); }

TEST(StockMessagesTest, AnErrorIsTheGoldenOne) {
  expect_equal("error.pkl", pickle_error("Some workers failed to update weights"));
}

TEST(StockMessagesTest, ABucketIsTheGoldenOne) {
  const TensorInfo embed =
      *make_tensor_info("model.embed_tokens.weight", DType::kBF16, {151936, 1024});
  const TensorInfo scalar = *make_tensor_info("m\xc3\xa9", DType::kF8E4M3, {});
  const TensorInfo empty = *make_tensor_info("z", DType::kF32, {0, 3});
  const std::vector<RingEntry> entries = {whole(embed, 0), whole(scalar, 311164928),
                                          whole(empty, 9000000000)};
  expect_equal("bucket.pkl", *pickle_bucket(entries));
}

TEST(StockMessagesTest, ACudaRingIsTheGoldenOne) {
  BufferHandle ring;
  ring.kind = DeviceKind::kCuda;
  ring.bytes = 17179869184;
  for (int i = 0; i < 64; ++i) ring.ipc.push_back(static_cast<std::byte>(i));
  expect_equal("cuda.pkl", *pickle_ring(ring, 3));
}

TEST(StockMessagesTest, AHostRingIsTheGoldenOne) {
  BufferHandle ring;
  ring.bytes = 5000000000;
  ring.shared_memory = "x";
  expect_equal("shm.pkl", *pickle_ring(ring));
}

TEST(StockMessagesTest, PairsOfNibblesAreCountedAsTorchDoes) {
  const TensorInfo pairs = *make_tensor_info("w", DType::kF4, {2, 6});
  TensorInfo bytes = *make_tensor_info("w", DType::kU8, {2, 3});
  Bytes expected = *pickle_bucket(std::vector{whole(bytes, 256)});
  const Bytes actual = *pickle_bucket(std::vector{whole(pairs, 256)});
  std::string text(reinterpret_cast<const char*>(expected.data()), expected.size());
  text.replace(text.find("ctorch\nuint8\n"), 13, "ctorch\nfloat4_e2m1fn_x2\n");
  EXPECT_EQ(text, std::string(reinterpret_cast<const char*>(actual.data()), actual.size()));
}

TEST(StockMessagesTest, WhatTheWorkerCouldOnlyFailOnIsRefused) {
  const TensorInfo info = *make_tensor_info("w", DType::kF32, {4});
  EXPECT_THAT(pickle_bucket(std::vector{whole(info, 6)}).status().message(),
              HasSubstr("ring offset 6"));
  EXPECT_THAT(pickle_bucket(std::vector{RingEntry{&info, 0, 4, 12, 0}}).status().message(),
              HasSubstr("in part"));
  BufferHandle ring;
  EXPECT_FALSE(pickle_ring(ring).is_ok());
  ring.kind = DeviceKind::kCuda;
  ring.bytes = 256;
  ring.ipc.resize(66);
  EXPECT_THAT(pickle_ring(ring).status().message(), HasSubstr("66"));
}

TEST(PickleWriterTest, WritesEverySizeOfInteger) {
  PickleWriter out;
  out.mark();
  for (const std::int64_t value :
       {std::int64_t{0}, std::int64_t{255}, std::int64_t{256}, std::int64_t{65535},
        std::int64_t{65536}, std::int64_t{2147483647}, std::int64_t{2147483648}, std::int64_t{-1},
        std::int64_t{-2147483649}, INT64_MAX, INT64_MIN}) {
    out.integer(value);
  }
  const std::string path = testing::TempDir() + "/integers-" + random_id() + ".pkl";
  const Bytes pickle = out.tuple().finish();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(pickle.data()),
             static_cast<std::streamsize>(pickle.size()));
  const std::string command =
      concat("python3 -c 'import pickle,sys; sys.exit(pickle.load(open(\"", path,
             "\",\"rb\")) != (0,255,256,65535,65536,2**31-1,2**31,-1,-2**31-1,2**63-1,-2**63))'");
  EXPECT_EQ(std::system(command.c_str()), 0);
  ::unlink(path.c_str());
}

TEST(PickleWriterTest, ReplacesWhatIsNotUtf8) {
  const auto text = [](std::string_view value) {
    const Bytes pickle = PickleWriter().text(value).finish();
    return std::string(reinterpret_cast<const char*>(pickle.data()) + 7, pickle.size() - 8);
  };
  EXPECT_EQ(text("m\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "m\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(text("a\xff\x80z"), "a??z");
  EXPECT_EQ(text("\xc0\xaf"), "??");
  EXPECT_EQ(text("\xed\xa0\x80"), "???");
  EXPECT_EQ(text("\xe2\x82"), "??");
  EXPECT_EQ(text("\xf4\x90\x80\x80"), "????");
}

TEST(WorkerErrorText, IsTheExceptionOnOneLine) {
  EXPECT_EQ(worker_error_text("Traceback (most recent call last):\n"
                              "  File \"worker.py\", line 7, in run\n    load(weights)\n"
                              "AssertionError: sizes\n  differ\n"),
            "AssertionError: sizes differ");
  EXPECT_EQ(worker_error_text("Traceback (most recent call last):\n  File \"a.py\"\n    f()\n"
                              "KeyError: 'x'\n"),
            "KeyError: 'x'");
  EXPECT_EQ(worker_error_text("  no\nmemory \n"), "no memory");
  EXPECT_EQ(worker_error_text("Traceback"), "Traceback");
  EXPECT_EQ(worker_error_text(""), "");
}

}  // namespace
}  // namespace ckpt
