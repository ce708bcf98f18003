// Small text helpers: numbers for people, nearest-name suggestions, UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hearth {

// 1234567 -> "1,234,567".
std::string with_commas(int64_t value);
// 1536 -> "1.50 KiB"; binary units, three significant digits.
std::string human_bytes(uint64_t bytes);
// 3723.4 -> "1h02m03s"; 63 -> "1m03s"; 3.2 -> "3.2s".
std::string human_seconds(double seconds);
// 9 significant digits, round-trippable for float: the form used for losses in metrics.jsonl.
std::string nine_digits(double value);
// Quotes for an error message: control characters and invalid UTF-8 become \xNN, long text is cut with "...".
std::string quoted(std::string_view raw, size_t longest = 60);
// Exact matches for std::string, so that argument-dependent lookup does not prefer std::quoted,
// which escapes nothing.
inline std::string quoted(const std::string& raw, size_t longest = 60) {
  return quoted(std::string_view(raw), longest);
}
inline std::string quoted(const char* raw, size_t longest = 60) {
  return quoted(std::string_view(raw), longest);
}
inline std::string quoted(std::string& raw, size_t longest = 60) {
  return quoted(std::string_view(raw), longest);
}
// The candidate with the smallest edit distance to `name`,
// or "" when none is close (more than a third wrong).
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

// Length in bytes of the longest prefix of `bytes` that ends on a UTF-8 character boundary (an incomplete
// last character is left out; invalid bytes count as complete).
size_t complete_utf8_prefix(std::string_view bytes);

}  // namespace hearth
