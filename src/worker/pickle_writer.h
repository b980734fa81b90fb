// Writes Python pickles, protocol 3, without memo or frames. Nothing here reads one: a pickle runs
// code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ckpt {

/// One opcode a call, on the stack machine of Python's pickle module: a value is pushed, or values
/// are taken off and what they make is pushed. Calls chain.
class PickleWriter {
 public:
  PickleWriter();

  PickleWriter& none();
  PickleWriter& boolean(bool value);
  PickleWriter& integer(std::int64_t value);
  /// UTF-8; invalid sequences are replaced by '?', since one would make the whole pickle
  /// unreadable.
  PickleWriter& text(std::string_view value);
  PickleWriter& bytes(std::span<const std::byte> value);
  /// module.name; without line feeds.
  PickleWriter& global(std::string_view module, std::string_view name);

  /// Start of a tuple, or of the items of a list or dict.
  PickleWriter& mark();
  PickleWriter& tuple();   ///< of everything since mark()
  PickleWriter& tuple1();  ///< of the topmost value
  PickleWriter& tuple2();  ///< of the two topmost
  PickleWriter& empty_list();
  PickleWriter& append();  ///< everything since mark() to the list before it
  PickleWriter& empty_dict();
  PickleWriter& set_items();  ///< key, value, ... since mark() into the dict before it
  PickleWriter& reduce();     ///< callable, argument tuple -> the call's result
  PickleWriter& build();      ///< object, state -> object.__setstate__(state)

  /// Ends the pickle; the writer is empty afterwards.
  std::vector<std::byte> finish();

 private:
  PickleWriter& op(unsigned char code);
  void number(std::uint64_t value, int bytes);
  void raw(std::string_view value);

  std::vector<std::byte> out_;
};

}  // namespace ckpt
