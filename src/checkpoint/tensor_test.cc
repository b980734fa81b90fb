#include "checkpoint_engine/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckpt {
namespace {

using testing::HasSubstr;

std::uint64_t bytes_of(DType dtype, std::vector<std::int64_t> shape) {
  const Result<TensorInfo> info = make_tensor_info("t", dtype, std::move(shape));
  EXPECT_TRUE(info.is_ok()) << info.status().to_string();
  return info.is_ok() ? info->bytes : 0;
}

TEST(DTypes, NamesGoBothWays) {
  for (int i = 0; i < 20; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    EXPECT_EQ(dtype_from_torch_name(torch_dtype_name(dtype)), dtype);
    EXPECT_EQ(dtype_from_torch_name("torch." + std::string(torch_dtype_name(dtype))), dtype);
  }
  EXPECT_EQ(dtype_from_name("F8_E4M3"), DType::kF8E4M3);
  EXPECT_EQ(torch_dtype_name(DType::kF8E4M3), "float8_e4m3fn");
  EXPECT_EQ(dtype_from_name("bf16"), std::nullopt);
  EXPECT_EQ(dtype_from_name("F6_E3M2"), std::nullopt);
  EXPECT_EQ(dtype_from_torch_name("torch.complex128"), std::nullopt);
}

TEST(TensorInfo, CountsBytes) {
  EXPECT_EQ(bytes_of(DType::kF32, {}), 4u);
  EXPECT_EQ(bytes_of(DType::kBF16, {3, 5}), 30u);
  EXPECT_EQ(bytes_of(DType::kC64, {2}), 16u);
  EXPECT_EQ(bytes_of(DType::kF4, {2, 3}), 3u);
  EXPECT_EQ(bytes_of(DType::kF4, {0}), 0u);
  EXPECT_EQ(bytes_of(DType::kU8, {std::int64_t{1} << 62, 2}), std::uint64_t{1} << 63);
}

TEST(TensorInfo, EmptyIsEmptyWhateverTheOtherDimensions) {
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_EQ(bytes_of(DType::kF64, {0, huge, huge}), 0u);
  EXPECT_EQ(bytes_of(DType::kF64, {huge, huge, 0}), 0u);
}

TEST(TensorInfo, RefusesWhatHasNoSize) {
  const std::int64_t half = std::int64_t{1} << 32;
  EXPECT_THAT(make_tensor_info("w", DType::kU8, {half, half}).status().message(),
              HasSubstr("tensor \"w\": shape [4294967296, 4294967296] of U8 has more elements"));
  EXPECT_THAT(make_tensor_info("w", DType::kF32, {half, half / 4}).status().message(),
              HasSubstr("more bytes"));
  EXPECT_THAT(make_tensor_info("w", DType::kF32, {2, -1}).status().message(),
              HasSubstr("negative"));
  EXPECT_THAT(make_tensor_info("w", DType::kF4, {3}).status().message(), HasSubstr("whole byte"));
}

}  // namespace
}  // namespace ckpt
