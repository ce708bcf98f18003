// CRC32C against RFC 3720 (appendix B.4) in both implementations; SHA-256 against the examples of FIPS 180.
#include <gtest/gtest.h>

#include <string>

#include "base/crc32c.h"
#include "base/files.h"
#include "base/philox.h"

namespace hearth {
namespace {

std::string repeated(char byte, size_t count) {
  return std::string(count, byte);
}

std::string ascending_bytes(int count) {
  std::string out;
  for (int i = 0; i < count; ++i)
    out += static_cast<char>(i);
  return out;
}

std::string random_bytes(size_t count) {
  const PhiloxKey key = random_key(3, RandomDomain::sampling, 0);
  std::string out;
  for (size_t i = 0; i < count; ++i)
    out += static_cast<char>(random_block(key, i)[0]);
  return out;
}

uint32_t one_bit_at_a_time(std::string_view chars) {
  uint32_t state = ~0u;
  for (const char c : chars) {
    state ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit)
      state = (state >> 1) ^ ((state & 1) ? 0x82F63B78u : 0);
  }
  return ~state;
}

using Implementation = uint32_t (*)(uint32_t, std::span<const std::byte>);

class Crc32c : public testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    if (GetParam() == crc32c_by_instruction && !has_crc32c_instruction())
      GTEST_SKIP() << "this processor has no crc32 instruction";
  }
  static uint32_t of(std::string_view chars) { return ~GetParam()(~0u, std::as_bytes(std::span(chars))); }
};

TEST_P(Crc32c, MatchesPublishedVectors) {
  EXPECT_EQ(of(""), 0u);
  EXPECT_EQ(of("123456789"), 0xe3069283u);
  EXPECT_EQ(of(repeated('\0', 32)), 0x8a9136aau);
  EXPECT_EQ(of(repeated('\xff', 32)), 0x62a8ab43u);
  EXPECT_EQ(of(ascending_bytes(32)), 0x46dd794eu);
}

TEST_P(Crc32c, MatchesTheDefinitionAtEveryLengthAndAlignment) {
  const std::string bytes = random_bytes(100);
  for (size_t start = 0; start < 9; ++start)
    for (size_t length = 0; length <= 40; ++length) {
      const std::string_view part = std::string_view(bytes).substr(start, length);
      ASSERT_EQ(of(part), one_bit_at_a_time(part)) << "start " << start << " length " << length;
    }
}

INSTANTIATE_TEST_SUITE_P(Both, Crc32c, testing::Values(&crc32c_by_table, &crc32c_by_instruction),
                         [](const auto& info) { return info.index == 0 ? "table" : "instruction"; });

TEST(Crc32cChoice, ContinuesFromAnEarlierPart) {
  const std::string bytes = random_bytes(77);
  for (size_t cut = 0; cut <= bytes.size(); ++cut)
    ASSERT_EQ(crc32c(bytes.substr(cut), crc32c(bytes.substr(0, cut))), one_bit_at_a_time(bytes)) << cut;
}

TEST(Sha256, MatchesTheStandardsExamples) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(repeated('a', 1000000)),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PadsEveryLengthAroundABlock) {
  // 55 bytes are the most that leave room for the length in the same block.
  EXPECT_EQ(sha256_hex(repeated('a', 55)),
            "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(sha256_hex(repeated('a', 56)),
            "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(sha256_hex(repeated('a', 63)),
            "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
  EXPECT_EQ(sha256_hex(repeated('a', 64)),
            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

}  // namespace
}  // namespace hearth
