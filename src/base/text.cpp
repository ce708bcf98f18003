// Small text helpers; everything here is independent of the locale.
#include "base/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace hearth {
namespace {

// `value` with a fixed number of digits after the point.
std::string fixed(double value, int digits) {
  char buffer[512];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, digits);
  return std::string(buffer, result.ptr);
}

std::string two_digits(int64_t value) {
  return text(value < 10 ? "0" : "", value);
}

// The bytes that follow a lead byte, and the range of the first of them (Unicode 15, table 3-7: no overlong
// forms, no surrogates, nothing above U+10FFFF).  length 0: not a lead byte.
struct Utf8Lead {
  size_t length;
  uint8_t second_low = 0x80;
  uint8_t second_high = 0xBF;
};

Utf8Lead utf8_lead(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// How a character starts at bytes[0]: `expected` bytes long by its lead byte (0: invalid), of which the first
// `present` are there and well-formed.
struct Utf8Match {
  size_t expected;
  size_t present;
};

Utf8Match match_utf8(std::string_view bytes) {
  const Utf8Lead lead = utf8_lead(static_cast<uint8_t>(bytes[0]));
  size_t present = 1;
  for (; present < lead.length && present < bytes.size(); ++present) {
    const uint8_t byte = static_cast<uint8_t>(bytes[present]);
    const bool fits =
        present == 1 ? byte >= lead.second_low && byte <= lead.second_high : byte >= 0x80 && byte <= 0xBF;
    if (!fits) return {0, present};
  }
  return {lead.length, present};
}

bool is_control(std::string_view character) {
  const uint8_t first = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  // U+0080 to U+009F: terminals take some of them as escape sequences.
  return first == 0xC2 && static_cast<uint8_t>(character[1]) < 0xA0;
}

std::string hex_escaped(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const uint8_t byte = static_cast<uint8_t>(c);
    out += "\\x";
    out += "0123456789ABCDEF"[byte >> 4];
    out += "0123456789ABCDEF"[byte & 15];
  }
  return out;
}

// Edits are insertion, deletion, substitution and the swap of two neighbours ("optimal string alignment").
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j)
    row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::string with_commas(int64_t value) {
  const std::string signed_digits = std::to_string(value);
  const size_t sign = value < 0 ? 1 : 0;
  std::string out = signed_digits.substr(0, sign);
  for (size_t i = sign; i < signed_digits.size(); ++i) {
    if (i > sign && (signed_digits.size() - i) % 3 == 0) out += ',';
    out += signed_digits[i];
  }
  return out;
}

std::string human_bytes(uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  constexpr const char* units[] = {" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // The limits are where rounding would carry into another digit or unit.
  for (; value >= 1023.5 && unit + 1 < std::size(units); ++unit)
    value /= 1024;
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fixed(value, digits) + units[unit];
}

std::string human_seconds(double seconds) {
  // An estimate that divides by a rate of zero is not a time.
  if (!(std::fabs(seconds) < 1e12)) return "?";
  if (seconds < 0) return text("-", human_seconds(-seconds));
  if (seconds < 59.95) return fixed(seconds, 1) + "s";
  const int64_t whole = std::llround(seconds);
  const int64_t hours = whole / 3600;
  const int64_t minutes = whole / 60 % 60;
  const std::string rest = two_digits(whole % 60) + "s";
  if (hours == 0) return text(minutes, "m", rest);
  return text(hours, "h", two_digits(minutes), "m", rest);
}

std::string nine_digits(double value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, 9);
  return std::string(buffer, result.ptr);
}

std::string quoted(std::string_view raw, size_t longest) {
  std::string out = "\"";
  size_t at = 0;
  while (at < raw.size()) {
    const Utf8Match match = match_utf8(raw.substr(at));
    const bool valid = match.expected > 0 && match.present == match.expected;
    const std::string_view character = raw.substr(at, valid ? match.expected : 1);
    if (at + character.size() > longest) break;
    out += valid && !is_control(character) ? std::string(character) : hex_escaped(character);
    at += character.size();
  }
  return out + (at < raw.size() ? "...\"" : "\"");
}

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(name.size(), candidate.size());
    const size_t shorter = std::min(name.size(), candidate.size());
    // The distance is at least the difference in length: a huge name costs nothing.
    if (3 * (longer - shorter) > longer) continue;
    const size_t distance = edit_distance(name, candidate);
    if (3 * distance > longer || distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

size_t complete_utf8_prefix(std::string_view bytes) {
  // Only a lead byte among the last three can open a character that is cut off.
  const size_t furthest = std::min<size_t>(3, bytes.size());
  for (size_t back = 1; back <= furthest; ++back) {
    const Utf8Match match = match_utf8(bytes.substr(bytes.size() - back));
    if (match.expected > back) return bytes.size() - back;
  }
  return bytes.size();
}

}  // namespace hearth
