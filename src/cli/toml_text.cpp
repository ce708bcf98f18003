#include "cli/toml_text.h"

namespace hearth {
namespace {

// Behind these a string may begin.  Elsewhere a quote is a mistake, and what follows it counts as outside:
// the parser looks past it for the end of the value.
bool may_precede_string(std::string_view document, size_t offset) {
  constexpr std::string_view openers = " \t\r\n=[,{.";
  return offset == 0 || openers.find(document[offset - 1]) != std::string_view::npos;
}

// The offset behind the string that begins at `begin`.  Broken strings end at the line end or with the text.
size_t end_of_string(std::string_view document, size_t begin) {
  const char quote = document[begin];
  const std::string_view three = quote == '"' ? "\"\"\"" : "'''";
  const bool many_lines = document.substr(begin).starts_with(three);
  size_t at = begin + (many_lines ? 3 : 1);
  while (at < document.size()) {
    const char c = document[at];
    if (quote == '"' && c == '\\') {
      at += 2;
    } else if (many_lines && document.substr(at).starts_with(three)) {
      at += 3;
      for (int extra = 0; extra < 2 && at < document.size() && document[at] == quote; ++extra)
        ++at;  // up to two quotes may stand directly before the closing ones
      return at;
    } else if (!many_lines && (c == quote || c == '\n')) {
      return at + 1;
    } else {
      ++at;
    }
  }
  return document.size();
}

}  // namespace

std::optional<size_t> misplaced_non_ascii(std::string_view document) {
  size_t at = document.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  while (at < document.size()) {
    const char c = document[at];
    if (static_cast<unsigned char>(c) >= 0x80) return at;
    if ((c == '"' || c == '\'') && may_precede_string(document, at)) {
      at = end_of_string(document, at);
    } else if (c == '#') {
      while (at < document.size() && document[at] != '\n')
        ++at;
    } else {
      ++at;
    }
  }
  return std::nullopt;
}

}  // namespace hearth
