// Strict UTF-8: the characters (code points) of a text.
//
// Splitting by characters, the char tokenizer and GPT-2's pattern all need to know where a character starts
// and whether the bytes are UTF-8 at all.  Overlong forms, surrogates and values above U+10FFFF are invalid
// (RFC 3629).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hearth {

struct Utf8Character {
  char32_t code_point = 0;
  int length = 0;  // bytes; 0 when the bytes at this place are not UTF-8
};

// The character that starts at byte `offset` < text.size().
Utf8Character utf8_at(std::string_view text, size_t offset);

// Appends a code point to a string.
void append_utf8(std::string& out, char32_t code_point);

// Offset of the first byte that is not UTF-8, if any.
std::optional<size_t> invalid_utf8_offset(std::string_view text);

// Throws Error(data) that names `where`, the offset and the byte when the text is not UTF-8.
void require_utf8(std::string_view text, std::string_view where);

// The number of characters: bytes that do not continue a character.  Defined for any bytes.
int64_t count_characters(std::string_view text);

// Byte offset of character `index` (the size of the text when it has fewer characters).
size_t character_offset(std::string_view text, int64_t index);

// Unicode's White_Space property, which is what `\s` means in GPT-2's pattern.
bool is_white_space(char32_t code_point);

// "U+00E9 'é'": how messages name a character.
std::string describe_character(char32_t code_point);

}  // namespace hearth
