// What may stand where in TOML text, as far as the parser cannot be trusted with it.
//
// TOML allows characters beyond ASCII only in strings and comments.  toml++ 3.3 has undefined behaviour when
// it meets one anywhere else, so such text must never reach it.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace hearth {

// Offset of the first byte beyond ASCII that is outside of strings and comments; a byte order mark at the
// very beginning is allowed.  Exact for valid TOML;
// of broken text at least as much is found as a parser can reach.
std::optional<size_t> misplaced_non_ascii(std::string_view document);

}  // namespace hearth
