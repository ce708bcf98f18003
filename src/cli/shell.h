// Quoting for commands that are printed to be pasted into a shell.
#pragma once

#include <string>
#include <string_view>

namespace hearth {

// As one word of a POSIX shell: unchanged when nothing in it is special, else in single quotes.
std::string shell_quoted(std::string_view word);

}  // namespace hearth
