// Text helpers: exact output at the edges where rounding or a cut could go wrong.
#include "base/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

namespace hearth {
namespace {

TEST(Text, Commas) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(with_commas(-100), "-100");
  EXPECT_EQ(with_commas(-123456), "-123,456");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Text, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(10235), "10.0 KiB");  // not "9.995" rounded up to "10.00"
  EXPECT_EQ(human_bytes(102400), "100 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.00 MiB");  // not "1024 KiB"
  EXPECT_EQ(human_bytes(uint64_t{497} << 20), "497 MiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<uint64_t>::max()), "16.0 EiB");
}

TEST(Text, Seconds) {
  EXPECT_EQ(human_seconds(0), "0.0s");
  EXPECT_EQ(human_seconds(3.2), "3.2s");
  EXPECT_EQ(human_seconds(59.94), "59.9s");
  EXPECT_EQ(human_seconds(59.96), "1m00s");
  EXPECT_EQ(human_seconds(63), "1m03s");
  EXPECT_EQ(human_seconds(3599.6), "1h00m00s");
  EXPECT_EQ(human_seconds(3723.4), "1h02m03s");
  EXPECT_EQ(human_seconds(360000), "100h00m00s");
  EXPECT_EQ(human_seconds(-63), "-1m03s");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(human_seconds(std::nan("")), "?");
}

TEST(Text, NineDigitsBringBackEveryFloat) {
  EXPECT_EQ(nine_digits(4.17438745), "4.17438745");
  EXPECT_EQ(nine_digits(2.0), "2");
  EXPECT_EQ(nine_digits(1e-7), "1e-07");
  EXPECT_EQ(nine_digits(-1234567891.0), "-1.23456789e+09");
  for (float value = 1.0f; value < 1.001f; value = std::nextafter(value, 2.0f))
    ASSERT_EQ(std::strtof(nine_digits(value).c_str(), nullptr), value);
}

TEST(Text, QuotedEscapesWhatATerminalCouldObey) {
  EXPECT_EQ(quoted("plain"), "\"plain\"");
  EXPECT_EQ(quoted(""), "\"\"");
  EXPECT_EQ(quoted("a\n\x1b[2J\x7f"), "\"a\\x0A\\x1B[2J\\x7F\"");
  EXPECT_EQ(quoted(std::string_view("\0x", 2)), "\"\\x00x\"");
  EXPECT_EQ(quoted("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x94\xa5"), "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x94\xa5\"");
  EXPECT_EQ(quoted("\xc2\x9b"), "\"\\xC2\\x9B\"");           // the C1 form of ESC [
  EXPECT_EQ(quoted("\xff\xc3"), "\"\\xFF\\xC3\"");           // no lead byte; cut-off character
  EXPECT_EQ(quoted("\xed\xa0\x80"), "\"\\xED\\xA0\\x80\"");  // a surrogate
  EXPECT_EQ(quoted("\xc0\xaf"), "\"\\xC0\\xAF\"");           // an overlong '/'
}

TEST(Text, QuotedCutsBetweenCharacters) {
  EXPECT_EQ(quoted("abcdef", 6), "\"abcdef\"");
  EXPECT_EQ(quoted("abcdefg", 6), "\"abcdef...\"");
  EXPECT_EQ(quoted("ab\xe2\x82\xac", 4), "\"ab...\"");
}

TEST(Text, NearestSuggestsOnlyWhatIsClose) {
  const std::vector<std::string> keys = {"train.steps", "train.batch", "model.layers", "model.heads"};
  EXPECT_EQ(nearest("train.step", keys), "train.steps");
  EXPECT_EQ(nearest("model.haeds", keys), "model.heads");
  EXPECT_EQ(nearest("model.layer", keys), "model.layers");
  EXPECT_EQ(nearest("train.steps", keys), "train.steps");
  EXPECT_EQ(nearest("bananas", keys), "");
  EXPECT_EQ(nearest("", keys), "");
  EXPECT_EQ(nearest(std::string(1 << 20, 'x'), keys), "");
  EXPECT_EQ(nearest("abc", {}), "");
  // A third wrong is still close, more is not.
  EXPECT_EQ(nearest("abX", {"abc"}), "abc");
  EXPECT_EQ(nearest("abXX", {"abcd"}), "");
  // A swap of neighbours is one edit.
  EXPECT_EQ(nearest("acb", {"abc"}), "abc");
}

TEST(Text, CompletePrefixLeavesOutOnlyACutCharacter) {
  EXPECT_EQ(complete_utf8_prefix(""), 0u);
  EXPECT_EQ(complete_utf8_prefix("abc"), 3u);
  const std::string fire = "a\xf0\x9f\x94\xa5";
  EXPECT_EQ(complete_utf8_prefix(fire), 5u);
  for (size_t present = 1; present < 4; ++present)
    EXPECT_EQ(complete_utf8_prefix(fire.substr(0, 1 + present)), 1u);
  EXPECT_EQ(complete_utf8_prefix("a\xe2\x82"), 1u);
  EXPECT_EQ(complete_utf8_prefix("a\xc3"), 1u);
}

TEST(Text, CompletePrefixDoesNotWaitForInvalidBytes) {
  EXPECT_EQ(complete_utf8_prefix("a\xff"), 2u);
  EXPECT_EQ(complete_utf8_prefix("a\x80\x80\x80"), 4u);
  EXPECT_EQ(complete_utf8_prefix("a\xe0\x80"), 3u);      // no character starts with E0 80
  EXPECT_EQ(complete_utf8_prefix("a\xf4\x90\x80"), 4u);  // above U+10FFFF
  EXPECT_EQ(complete_utf8_prefix("\xf0\x9f"
                                 "a"),
            3u);
}

}  // namespace
}  // namespace hearth
