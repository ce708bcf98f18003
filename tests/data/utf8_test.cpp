// UTF-8: what is a character, what is not, and where.
#include "data/utf8.h"

#include "data/data_test_support.h"

namespace hearth {
namespace {

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code == 0xD800) code = 0xE000;
    std::string bytes;
    append_utf8(bytes, code);
    const Utf8Character c = utf8_at(bytes, 0);
    ASSERT_TRUE(c.code_point == code);
    ASSERT_EQ(c.length, static_cast<int>(bytes.size()));
  }
}

TEST(Utf8, RefusesEverythingElse) {
  const std::string_view invalid[] = {
      "\x80",              // a continuation alone
      "\xC3",              // cut off
      "\xC0\xAF",          // overlong '/'
      "\xE0\x9F\xBF",      // overlong
      "\xED\xA0\x80",      // surrogate
      "\xF0\x8F\xBF\xBF",  // overlong
      "\xF4\x90\x80\x80",  // above U+10FFFF
      "\xF8\x88\x80\x80\x80",
      "\xFF",
      "\xC3\x28",
  };
  for (const std::string_view bytes : invalid) {
    EXPECT_EQ(utf8_at(bytes, 0).length, 0);
    const std::string text = "eight bytes of ASCII, then " + std::string(bytes);
    EXPECT_EQ(invalid_utf8_offset(text), 27u);
  }
  EXPECT_EQ(invalid_utf8_offset("na\xC3\xAFve \xE6\xBC\xA2 \xF0\x9F\x99\x82 and more text"), std::nullopt);
}

TEST(Utf8, ErrorNamesPlaceAndByte) {
  const std::string sentence = error_of([] { require_utf8("abc\xFFz", "book.txt"); });
  expect_contains(sentence, "book.txt");
  expect_contains(sentence, "0xff at offset 3");
}

TEST(Utf8, CountsAndFindsCharacters) {
  const std::string text = "a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x99\x82z";
  EXPECT_EQ(count_characters(text), 5);
  EXPECT_EQ(character_offset(text, 0), 0u);
  EXPECT_EQ(character_offset(text, 2), 3u);
  EXPECT_EQ(character_offset(text, 4), 10u);
  EXPECT_EQ(character_offset(text, 5), text.size());
}

TEST(Utf8, WhiteSpaceIsUnicodes) {
  for (const char32_t c :
       {0x09, 0x0A, 0x0D, 0x20, 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x202F, 0x205F, 0x3000})
    EXPECT_TRUE(is_white_space(c)) << static_cast<int>(c);
  for (const char32_t c : {0x08, 0x0E, 0x1C, 0x1F, 0x41, 0x180E, 0x200B, 0xFEFF})
    EXPECT_FALSE(is_white_space(c)) << static_cast<int>(c);
}

}  // namespace
}  // namespace hearth
