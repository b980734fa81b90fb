#include "worker/pickle_writer.h"

#include <string>
#include <utility>

namespace ckpt {
namespace {

/// Length of the valid UTF-8 sequence at the start of `text`, 0 when there is none. Surrogates and
/// overlong forms are invalid.
std::size_t utf8_sequence(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
  if (length == 0 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  if (first == 0xe0 && at(1) < 0xa0) return 0;
  if (first == 0xed && at(1) > 0x9f) return 0;
  if (first == 0xf0 && at(1) < 0x90) return 0;
  if (first == 0xf4 && at(1) > 0x8f) return 0;
  return length;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_sequence(text);
    out.append(length > 0 ? text.substr(0, length) : "?");
    text.remove_prefix(length > 0 ? length : 1);
  }
  return out;
}

}  // namespace

PickleWriter::PickleWriter() { op(0x80).op(3); }

PickleWriter& PickleWriter::op(unsigned char code) {
  out_.push_back(static_cast<std::byte>(code));
  return *this;
}

void PickleWriter::number(std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) op(static_cast<unsigned char>(value >> (8 * i)));
}

void PickleWriter::raw(std::string_view value) {
  const auto* data = reinterpret_cast<const std::byte*>(value.data());
  out_.insert(out_.end(), data, data + value.size());
}

PickleWriter& PickleWriter::none() { return op('N'); }
PickleWriter& PickleWriter::boolean(bool value) { return op(value ? 0x88 : 0x89); }

PickleWriter& PickleWriter::integer(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0 && value <= 0xff) {
    op('K').number(bits, 1);
  } else if (value >= 0 && value <= 0xffff) {
    op('M').number(bits, 2);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    op('J').number(bits, 4);
  } else {
    op(0x8a).op(8).number(bits, 8);
  }
  return *this;
}

PickleWriter& PickleWriter::text(std::string_view value) {
  const std::string valid = valid_utf8(value);
  op('X').number(valid.size(), 4);
  raw(valid);
  return *this;
}

PickleWriter& PickleWriter::bytes(std::span<const std::byte> value) {
  if (value.size() <= 0xff) {
    op('C').number(value.size(), 1);
  } else {
    op('B').number(value.size(), 4);
  }
  out_.insert(out_.end(), value.begin(), value.end());
  return *this;
}

PickleWriter& PickleWriter::global(std::string_view module, std::string_view name) {
  op('c').raw(module);
  op('\n').raw(name);
  return op('\n');
}

PickleWriter& PickleWriter::mark() { return op('('); }
PickleWriter& PickleWriter::tuple() { return op('t'); }
PickleWriter& PickleWriter::tuple1() { return op(0x85); }
PickleWriter& PickleWriter::tuple2() { return op(0x86); }
PickleWriter& PickleWriter::empty_list() { return op(']'); }
PickleWriter& PickleWriter::append() { return op('e'); }
PickleWriter& PickleWriter::empty_dict() { return op('}'); }
PickleWriter& PickleWriter::set_items() { return op('u'); }
PickleWriter& PickleWriter::reduce() { return op('R'); }
PickleWriter& PickleWriter::build() { return op('b'); }

std::vector<std::byte> PickleWriter::finish() {
  op('.');
  return std::exchange(out_, {});
}

}  // namespace ckpt
