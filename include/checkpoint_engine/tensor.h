// Tensors as the engine knows them: a name, an element type, a shape and a span of bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint_engine/status.h"

namespace [[gnu::visibility("default")]] ckpt {

/// Element types of the safetensors format. Values travel on the wire: never renumber.
enum class DType : std::uint8_t {
  kBool = 0,
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kU16 = 4,
  kI32 = 5,
  kU32 = 6,
  kI64 = 7,
  kU64 = 8,
  kF16 = 9,
  kBF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 13,
  kF8E4M3 = 14,
  kF8E5M2 = 15,
  kF8E8M0 = 16,
  kF8E4M3FNUZ = 17,
  kF8E5M2FNUZ = 18,
  kF4 = 19,  ///< two elements in a byte; the shape counts elements
};

/// Bits of one element: 4 for F4, else a multiple of 8.
int dtype_bits(DType dtype);
/// The safetensors name, e.g. "BF16".
std::string_view dtype_name(DType dtype);
/// From a safetensors name; nothing when unknown.
std::optional<DType> dtype_from_name(std::string_view name);
/// The torch attribute name, e.g. "bfloat16" ("float4_e2m1fn_x2" for F4).
std::string_view torch_dtype_name(DType dtype);
/// From a torch name, with or without the "torch." prefix; nothing when unknown.
std::optional<DType> dtype_from_torch_name(std::string_view name);

/// Name, element type and shape. `bytes` is shape x dtype, computed once by make_tensor_info.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;  ///< as in the safetensors header; empty for a scalar
  std::uint64_t bytes = 0;

  bool operator==(const TensorInfo&) const = default;
};

/// Checks that the dimensions are not negative, the product fits 64 bits and whole bytes come out.
Result<TensorInfo> make_tensor_info(std::string name, DType dtype, std::vector<std::int64_t> shape);

}  // namespace ckpt
