// Strict UTF-8 decoding; see utf8.h.
#include "data/utf8.h"

#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace hearth {
namespace {

uint8_t byte_at(std::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

bool continues(uint8_t byte) {
  return (byte & 0xC0) == 0x80;
}

// Length that a first byte announces, 0 when no character starts with it.
int announced_length(uint8_t first) {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;  // a continuation, or the start of an overlong form
  if (first < 0xE0) return 2;
  if (first < 0xF0) return 3;
  return first < 0xF5 ? 4 : 0;
}

}  // namespace

Utf8Character utf8_at(std::string_view text, size_t offset) {
  const uint8_t first = byte_at(text, offset);
  const int length = announced_length(first);
  if (length == 1) return {first, 1};
  if (length == 0 || text.size() - offset < static_cast<size_t>(length)) return {};
  char32_t code = first & (0xFF >> (length + 1));
  for (int i = 1; i < length; ++i) {
    const uint8_t next = byte_at(text, offset + i);
    if (!continues(next)) return {};
    code = (code << 6) | (next & 0x3F);
  }
  constexpr char32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < smallest[length] || surrogate || code > 0x10FFFF) return {};
  return {code, length};
}

void append_utf8(std::string& out, char32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr int mark[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(mark[more] | (code >> (6 * more)));
  for (int i = more - 1; i >= 0; --i)
    out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
}

std::optional<size_t> invalid_utf8_offset(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    // Eight ASCII bytes at a time: most text is mostly ASCII.
    uint64_t word;
    if (text.size() - i >= sizeof word) {
      std::memcpy(&word, text.data() + i, sizeof word);
      if ((word & 0x8080808080808080ull) == 0) {
        i += sizeof word;
        continue;
      }
    }
    const Utf8Character c = utf8_at(text, i);
    if (c.length == 0) return i;
    i += c.length;
  }
  return std::nullopt;
}

void require_utf8(std::string_view text, std::string_view where) {
  const std::optional<size_t> offset = invalid_utf8_offset(text);
  if (!offset) return;
  char hex[8];
  std::snprintf(hex, sizeof hex, "0x%02x", byte_at(text, *offset));
  fail_data(where, " is not UTF-8: byte ", hex, " at offset ", *offset,
            " starts no valid character; convert it to UTF-8 or use the byte tokenizer");
}

int64_t count_characters(std::string_view text) {
  int64_t count = 0;
  for (const char c : text)
    count += !continues(static_cast<uint8_t>(c));
  return count;
}

size_t character_offset(std::string_view text, int64_t index) {
  int64_t seen = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (continues(byte_at(text, i))) continue;
    if (seen == index) return i;
    ++seen;
  }
  return text.size();
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string describe_character(char32_t code) {
  char number[16];
  std::snprintf(number, sizeof number, "U+%04X", static_cast<unsigned>(code));
  std::string description = number;
  const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  if (control) return description;
  description += " '";
  append_utf8(description, code);
  return description + "'";
}

}  // namespace hearth
