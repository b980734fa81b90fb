#include "checkpoint_engine/tensor.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/strings.h"

namespace ckpt {
namespace {

struct DTypeRow {
  DType dtype;
  int bits;
  std::string_view name;
  std::string_view torch_name;
};

constexpr std::array<DTypeRow, 20> kDTypes = {{
    {DType::kBool, 8, "BOOL", "bool"},
    {DType::kU8, 8, "U8", "uint8"},
    {DType::kI8, 8, "I8", "int8"},
    {DType::kI16, 16, "I16", "int16"},
    {DType::kU16, 16, "U16", "uint16"},
    {DType::kI32, 32, "I32", "int32"},
    {DType::kU32, 32, "U32", "uint32"},
    {DType::kI64, 64, "I64", "int64"},
    {DType::kU64, 64, "U64", "uint64"},
    {DType::kF16, 16, "F16", "float16"},
    {DType::kBF16, 16, "BF16", "bfloat16"},
    {DType::kF32, 32, "F32", "float32"},
    {DType::kF64, 64, "F64", "float64"},
    {DType::kC64, 64, "C64", "complex64"},
    {DType::kF8E4M3, 8, "F8_E4M3", "float8_e4m3fn"},
    {DType::kF8E5M2, 8, "F8_E5M2", "float8_e5m2"},
    {DType::kF8E8M0, 8, "F8_E8M0", "float8_e8m0fnu"},
    {DType::kF8E4M3FNUZ, 8, "F8_E4M3FNUZ", "float8_e4m3fnuz"},
    {DType::kF8E5M2FNUZ, 8, "F8_E5M2FNUZ", "float8_e5m2fnuz"},
    {DType::kF4, 4, "F4", "float4_e2m1fn_x2"},
}};

constexpr bool rows_follow_the_enum() {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<std::size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(rows_follow_the_enum());

const DTypeRow& row(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

std::optional<DType> find(std::string_view DTypeRow::*column, std::string_view name) {
  for (const DTypeRow& candidate : kDTypes) {
    if (candidate.*column == name) return candidate.dtype;
  }
  return std::nullopt;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (const std::int64_t dim : shape) out += concat(out.size() > 1 ? ", " : "", dim);
  return out + "]";
}

}  // namespace

int dtype_bits(DType dtype) { return row(dtype).bits; }
std::string_view dtype_name(DType dtype) { return row(dtype).name; }
std::optional<DType> dtype_from_name(std::string_view name) { return find(&DTypeRow::name, name); }
std::string_view torch_dtype_name(DType dtype) { return row(dtype).torch_name; }

std::optional<DType> dtype_from_torch_name(std::string_view name) {
  constexpr std::string_view kModule = "torch.";
  if (name.starts_with(kModule)) name.remove_prefix(kModule.size());
  return find(&DTypeRow::torch_name, name);
}

Result<TensorInfo> make_tensor_info(std::string name, DType dtype,
                                    std::vector<std::int64_t> shape) {
  const auto refuse = [&](std::string_view reason) {
    return invalid_argument(concat("tensor ", quoted(name), ": shape ", shape_text(shape), " of ",
                                   dtype_name(dtype), " ", reason));
  };
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t dim) { return dim < 0; })) {
    return refuse("has a negative dimension");
  }
  // An empty tensor is empty however large its other dimensions are, whatever their order.
  std::uint64_t elements = std::find(shape.begin(), shape.end(), 0) == shape.end() ? 1 : 0;
  if (elements != 0) {
    for (const std::int64_t dim : shape) {
      if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(dim), &elements)) {
        return refuse("has more elements than 64 bits can count");
      }
    }
  }
  std::uint64_t bytes = 0;
  const auto bits = static_cast<std::uint64_t>(dtype_bits(dtype));
  if (bits < 8) {
    const std::uint64_t elements_in_a_byte = 8 / bits;
    if (elements % elements_in_a_byte != 0) return refuse("does not end on a whole byte");
    bytes = elements / elements_in_a_byte;
  } else if (__builtin_mul_overflow(elements, bits / 8, &bytes)) {
    return refuse("has more bytes than 64 bits can count");
  }
  return TensorInfo{std::move(name), dtype, std::move(shape), bytes};
}

}  // namespace ckpt
