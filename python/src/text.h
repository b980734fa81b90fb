// Text across the border, whatever it holds: what UTF-8 cannot say is escaped, as in "\udcff".
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

namespace ckpt::python {

namespace nb = nanobind;

/// A str with lone surrogates (the name of a file that is no UTF-8, say) has no UTF-8 of its own.
/// Empty for what is no str. Needs the GIL, like all of these.
std::string utf8_of(nb::handle text);

/// A str of bytes that need not be UTF-8.
nb::object str_of(std::string_view text);

/// What an exception says. Never raises: repr() where str() raises, and where that does, too, that
/// it has no text.
std::string text_of(nb::handle exception);

/// "ValueError: the text".
std::string type_and_text_of(nb::handle exception);

void bind_text(nb::module_& module);

}  // namespace ckpt::python
