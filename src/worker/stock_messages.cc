#include "worker/stock_messages.h"

#include <algorithm>
#include <array>

#include "base/strings.h"
#include "worker/pickle_writer.h"

namespace ckpt {
namespace {

constexpr std::size_t kIpcHandleBytes = 64;
/// torch opens this file to count references, and does without when it is not there.
constexpr std::string_view kNoCounter = "/ckpt_engine_no_such_counter";

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void write_dtype(PickleWriter& out, std::string_view torch_name) {
  out.global("torch", torch_name);
}

void write_size(PickleWriter& out, std::span<const std::int64_t> dims) {
  out.global("torch", "Size").mark();
  for (const std::int64_t dim : dims) out.integer(dim);
  out.tuple().tuple1().reduce();
}

/// The fifteen arguments of rebuild_cuda_tensor, numbered as in docs/wire-stock.md.
void write_cuda_arguments(PickleWriter& out, const BufferHandle& ring, int device_index) {
  static constexpr std::array<std::byte, kIpcHandleBytes> kNoEvent{};
  const auto bytes = static_cast<std::int64_t>(ring.bytes);
  out.mark().global("torch", "Tensor");          // 0
  write_size(out, std::array{bytes});            // 1
  out.mark().integer(1).tuple().integer(0);      // 2, 3
  out.global("torch.storage", "TypedStorage");   // 4
  write_dtype(out, "uint8");                     // 5
  out.integer(device_index).bytes(ring.ipc);     // 6, 7
  out.integer(bytes).integer(0).boolean(false);  // 8, 9, 10
  out.bytes(bytes_of(kNoCounter)).integer(0);    // 11, 12
  out.bytes(kNoEvent).boolean(false).tuple();    // 13, 14
}

/// functools.partial(torch.from_file, dtype=torch.uint8), as pickle itself writes a partial.
void write_from_file(PickleWriter& out) {
  out.global("functools", "partial").global("torch", "from_file").tuple1().reduce();
  out.mark().global("torch", "from_file").mark().tuple();
  out.empty_dict().mark().text("dtype");
  write_dtype(out, "uint8");
  out.set_items().none().tuple().build();
}

Status check_entry(const RingEntry& entry) {
  const TensorInfo& info = *entry.info;
  if (entry.begin != 0 || entry.bytes != info.bytes) {
    return invalid_argument(concat("tensor ", quoted(info.name), " was announced in part (bytes ",
                                   entry.begin, " + ", entry.bytes, " of ", info.bytes,
                                   "); the stock wire takes whole tensors"));
  }
  const auto unit = static_cast<std::uint64_t>(std::max(1, dtype_bits(info.dtype) / 8));
  if (entry.ring_offset % unit != 0) {
    return invalid_argument(concat("tensor ", quoted(info.name), " (", dtype_name(info.dtype),
                                   ") lies at ring offset ", entry.ring_offset,
                                   ", which is no multiple of its ", unit, "-byte elements"));
  }
  return Status::ok();
}

/// torch has no 4-bit elements: it counts pairs.
std::vector<std::int64_t> torch_shape(const TensorInfo& info) {
  std::vector<std::int64_t> shape = info.shape;
  if (info.dtype == DType::kF4 && !shape.empty()) shape.back() /= 2;
  return shape;
}

}  // namespace

Result<std::vector<std::byte>> pickle_ring(const BufferHandle& ring, int device_index) {
  if (ring.bytes == 0) return invalid_argument("a ring of 0 bytes");
  PickleWriter out;
  if (ring.kind == DeviceKind::kCuda) {
    if (ring.ipc.size() != kIpcHandleBytes) {
      return invalid_argument(
          concat("an ipc handle of ", ring.ipc.size(), " bytes, not ", kIpcHandleBytes));
    }
    out.global("torch.multiprocessing.reductions", "rebuild_cuda_tensor");
    write_cuda_arguments(out, ring, device_index);
  } else {
    write_from_file(out);
    out.mark().text("/dev/shm/" + ring.shared_memory).boolean(true);
    out.integer(static_cast<std::int64_t>(ring.bytes)).tuple();
  }
  return out.tuple2().finish();
}

Result<std::vector<std::byte>> pickle_bucket(std::span<const RingEntry> entries) {
  PickleWriter out;
  out.empty_list().mark();
  for (const RingEntry& entry : entries) {
    CKPT_RETURN_IF_ERROR(check_entry(entry));
    out.empty_dict().mark().text("name").text(entry.info->name).text("dtype");
    write_dtype(out, torch_dtype_name(entry.info->dtype));
    out.text("shape");
    write_size(out, torch_shape(*entry.info));
    out.text("offset").integer(static_cast<std::int64_t>(entry.ring_offset)).set_items();
  }
  return out.append().finish();
}

std::vector<std::byte> pickle_none() { return PickleWriter().none().finish(); }

std::vector<std::byte> pickle_error(std::string_view text) {
  return PickleWriter().global("builtins", "RuntimeError").text(text).tuple1().reduce().finish();
}

std::string worker_error_text(std::string_view answer) {
  std::vector<std::string> lines;
  for (const std::string& line : split(answer, '\n')) {
    // The exception stands behind the last frame and the code lines under it.
    if (line.starts_with("  File \"") || (lines.empty() && line.starts_with("    "))) {
      lines.clear();
    } else if (!trim(line).empty()) {
      lines.emplace_back(trim(line));
    }
  }
  return join(lines, " ");
}

}  // namespace ckpt
