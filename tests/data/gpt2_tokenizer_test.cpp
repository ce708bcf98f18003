// GPT-2's BPE: the logic with a small merge list that is always at hand, and GPT-2's published values with
// its own files where data/fetch_gpt2_tokenizer.sh has fetched them.
#include "data/gpt2_tokenizer.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <random>

#include <nlohmann/json.hpp>

#include "data/data_test_support.h"
#include "data/utf8.h"

namespace hearth {
namespace {

// Ids of the merges: 256 he, 257 ll, 258 hell, 259 hello, 260 " w", 261 aa, 262 aaaa, 263 "  ", 264 ".."
constexpr char small_merges[] =
    "#version: 0.2\nh e\nl l\nhe ll\nhell o\n\xC4\xA0 w\na a\naa aa\n\xC4\xA0 \xC4\xA0\n. .\n";

std::unique_ptr<Tokenizer> small_tokenizer() {
  return make_gpt2_tokenizer(parse_merges_file(small_merges, "small"));
}

int32_t byte_id(char c) {
  const auto& order = gpt2_byte_order();
  return static_cast<int32_t>(std::find(order.begin(), order.end(), static_cast<uint8_t>(c)) - order.begin());
}

// The textbook algorithm: merge the first occurrence of the pair of lowest id until there is none.
std::vector<int32_t> merge_slowly(std::string_view piece, const MergeTable& table) {
  std::vector<int32_t> ids;
  for (const char c : piece)
    ids.push_back(byte_id(c));
  while (true) {
    for (size_t merge = 0;; ++merge) {
      if (merge == table.merges().size()) return ids;
      const auto [left, right] = table.merges()[merge];
      size_t at = 0;
      while (at + 1 < ids.size() && !(ids[at] == left && ids[at + 1] == right))
        ++at;
      if (at + 1 >= ids.size()) continue;
      ids[at] = 256 + static_cast<int32_t>(merge);
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      break;
    }
  }
}

TEST(Bpe, ByteOrderIsGpt2s) {
  const auto& order = gpt2_byte_order();
  EXPECT_EQ(order[0], '!');
  EXPECT_EQ(order[93], '~');
  EXPECT_EQ(order[94], 0xA1);
  EXPECT_EQ(order[187], 0xFF);
  EXPECT_EQ(order[188], 0x00);
  EXPECT_EQ(order[220], ' ');
  EXPECT_EQ(order[255], 0xAD);
  EXPECT_EQ(byte_symbols(" t\n"), "\xC4\xA0t\xC4\x8A");
}

TEST(Bpe, SmallTableByHand) {
  const auto tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer->vocab(), 266);
  EXPECT_EQ(tokenizer->end_of_text(), 265);
  EXPECT_EQ(tokenizer->encode("hello"), (std::vector<int32_t>{259}));
  EXPECT_EQ(tokenizer->encode("hello w"), (std::vector<int32_t>{259, 260}));
  EXPECT_EQ(tokenizer->encode("help"), (std::vector<int32_t>{256, byte_id('l'), byte_id('p')}));
  EXPECT_EQ(tokenizer->encode("aaaaaaa"), (std::vector<int32_t>{262, 261, byte_id('a')}));
  EXPECT_EQ(tokenizer->encode(""), std::vector<int32_t>());
  EXPECT_EQ(tokenizer->decode({259, 260, 265}), "hello w<|endoftext|>");
  expect_contains(error_of([&] { tokenizer->decode(266); }), "vocabulary of 266");
}

TEST(Bpe, EndOfTextIsNeverMatchedInText) {
  const auto tokenizer = small_tokenizer();
  for (const int32_t id : tokenizer->encode("hello<|endoftext|>hello"))
    EXPECT_NE(id, 265);
}

// What each alternative of the pattern takes, seen through merges that may not cross pieces.
TEST(Bpe, PiecesFollowThePattern) {
  const auto tokenizer = small_tokenizer();
  const auto ids = [&](const char* text) { return tokenizer->encode(text); };
  const int32_t space = byte_id(' ');
  // Of a run of spaces the last one belongs to the word.
  EXPECT_EQ(ids("a   w"), (std::vector<int32_t>{byte_id('a'), 263, 260}));
  EXPECT_EQ(ids("a  w"), (std::vector<int32_t>{byte_id('a'), space, 260}));
  // At the end of the text the run stays whole.
  EXPECT_EQ(ids("a  "), (std::vector<int32_t>{byte_id('a'), 263}));
  // U+00A0 and U+0085 are white space: the last of the run is left for a piece of its own.
  EXPECT_EQ(ids("  \xC2\xA0w").size(), 4u);
  EXPECT_EQ(ids("  \xC2\xA0w")[0], 263);
  EXPECT_EQ(ids("  \xC2\x85w")[0], 263);
  // U+180E is not: it joins the points, and the spaces before it are a run that ends before its own space.
  EXPECT_EQ(ids("  \xE1\xA0\x8E")[0], space);
  EXPECT_EQ(ids("  .."), (std::vector<int32_t>{space, space, 264}));
}

TEST(Bpe, AgreesWithTheTextbookOnRandomPieces) {
  std::mt19937 random(1);
  const std::string letters = "abcd";
  for (int table_number = 0; table_number < 30; ++table_number) {
    MergeTable table;
    while (table.size() < 256 + 40) {
      const auto pick = [&] {
        const bool letter = table.size() == 256 || random() % 2;
        return letter ? byte_id(letters[random() % 4])
                      : 256 + static_cast<int32_t>(random() % (table.size() - 256));
      };
      const int32_t left = pick();
      table.add(left, pick());
    }
    for (int n = 0; n < 50; ++n) {
      std::string piece;
      for (size_t length = random() % 60; piece.size() < length;)
        piece += letters[random() % 4];
      std::vector<int32_t> ids;
      table.encode_piece(piece, ids);
      ASSERT_EQ(ids, merge_slowly(piece, table)) << piece;
    }
  }
}

TEST(Bpe, TableRefusesBadMerges) {
  MergeTable table;
  EXPECT_TRUE(table.add(0, 1));
  EXPECT_FALSE(table.add(0, 1));
  EXPECT_FALSE(table.add(0, 257));
  EXPECT_FALSE(table.add(-1, 0));
  int32_t last = 256;
  while (table.add(last, last))
    ++last;
  EXPECT_EQ(table.bytes(last).size(), MergeTable::longest_token);
}

TEST(Bpe, MergesFileErrorsNameTheLine) {
  const auto parse = [](const char* content) {
    return error_of([&] { parse_merges_file(content, "vocab.bpe"); });
  };
  expect_contains(parse("#version: 0.2\nh e\nhello\n"), "vocab.bpe:3: expected two byte symbols");
  expect_contains(parse("h e\nl l\nx y z\n"), "vocab.bpe:3");
  expect_contains(parse("h e\nxx e\n"), "vocab.bpe:2: merges a token that no earlier line makes");
  expect_contains(parse("h e\nh e\n"), "vocab.bpe:2: this merge was listed before");
  expect_contains(parse("h \xE2\x82\xAC\n"), "byte symbols");
  expect_contains(parse("h \xFF\n"), "byte symbols");
  expect_contains(parse(" e\n"), "byte symbols");
  EXPECT_EQ(parse_merges_file("#version: 0.2\r\nh e\r\n\r\n", "crlf").size(), 257);
}

TEST(Bpe, InvalidUtf8IsRefusedWithItsOffset) {
  expect_contains(error_of([] { small_tokenizer()->encode("abc\xC3"); }), "offset 3");
}

TEST(Bpe, JsonRoundTrip) {
  const auto original = small_tokenizer();
  const auto copy = load_tokenizer(original->to_json(), "copy");
  EXPECT_EQ(copy->to_json(), original->to_json());
  EXPECT_EQ(copy->encode("hello  wwaaa.."), original->encode("hello  wwaaa.."));
}

// llm.c's layout: 256 uint32 (magic, version, tokens, end of text), then length and bytes of each token.
std::string llmc_tokenizer_bytes(const Tokenizer& tokenizer, uint32_t version = 2) {
  std::vector<uint32_t> header(256);
  header[0] = 20240328;
  header[1] = version;
  header[2] = static_cast<uint32_t>(tokenizer.vocab());
  header[3] = version == 2 ? static_cast<uint32_t>(*tokenizer.end_of_text()) : 0;
  std::string bytes = bytes_of(header);
  for (int32_t id = 0; id < tokenizer.vocab(); ++id) {
    const std::string token = tokenizer.decode(id);
    bytes += static_cast<char>(token.size());
    bytes += token;
  }
  return bytes;
}

TEST(LlmcTokenizer, MergesAreRecovered) {
  const TempDir dir;
  const auto original = small_tokenizer();
  for (const uint32_t version : {1, 2}) {
    const auto copy =
        load_tokenizer_file(write_file(dir.path() / "t.bin", llmc_tokenizer_bytes(*original, version)));
    EXPECT_EQ(copy->to_json(), original->to_json());
    EXPECT_EQ(copy->fingerprint(), original->fingerprint());
  }
}

TEST(LlmcTokenizer, DamageIsNamed) {
  const std::string good = llmc_tokenizer_bytes(*small_tokenizer());
  const auto parse = [](const std::string& bytes) {
    return error_of([&] { parse_llmc_tokenizer(bytes, "t.bin"); });
  };
  const auto with_word = [&](size_t index, uint32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + 4 * index, &value, 4);
    return bytes;
  };
  expect_contains(parse(good.substr(0, 1000)), "1000 bytes, but the header alone has 1024");
  expect_contains(parse(good.substr(0, good.size() - 1)), "at token 265 of 266");
  expect_contains(parse(good + "x"), "1 bytes follow");
  expect_contains(parse(with_word(1, 3)), "version 3");
  expect_contains(parse(with_word(2, 4000000000u)), "4000000000 tokens");
  expect_contains(parse(with_word(2, 256)), "256 tokens");
  expect_contains(parse(with_word(3, 5)), "end-of-text id 5");
  std::string bytes = good;
  bytes[1025] = '"';
  expect_contains(parse(bytes), "token 0 is not the byte");
  bytes = good;
  bytes[1024 + 512 + 1] = 'z';  // "he" becomes "ze", so "hell" has no left half
  expect_contains(parse(bytes), "token 258 is not a merge");
}

// ---- With GPT-2's own files

class Gpt2Files : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(default_gpt2_merges))
      GTEST_SKIP() << "no " << default_gpt2_merges << "; fetch it with data/fetch_gpt2_tokenizer.sh";
    tokenizer_ = make_default_gpt2_tokenizer();
  }
  static std::string shakespeare() {
    const char* path = "data/cache/shakespeare.txt";
    return fs::exists(path) ? read_file(path) : "";
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(Gpt2Files, ChecksumAndVocabulary) {
  EXPECT_EQ(sha256_hex(read_file(default_gpt2_merges)),
            "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5");
  EXPECT_EQ(tokenizer_->vocab(), 50257);
  EXPECT_EQ(tokenizer_->end_of_text(), 50256);
}

TEST_F(Gpt2Files, KnownSentences) {
  EXPECT_EQ(tokenizer_->encode("Hello world"), (std::vector<int32_t>{15496, 995}));
  EXPECT_EQ(tokenizer_->encode(" Hello world"), (std::vector<int32_t>{18435, 995}));
  const char* sentence =
      "Hello,  world!\n\n\tI'm 3.14 years\u00A0old \u2014 na\u00EFve caf\u00E9 \u6F22\u5B57 \U0001F642 'S "
      "'LL'll";
  const std::vector<int32_t> ids = {15496, 11,    220, 995,   0,   628, 197,   40,    1101,  513,
                                    13,    1415,  812, 1849,  727, 851, 41492, 40304, 10545, 120,
                                    95,    27764, 245, 32485, 705, 50,  705,   3069,  1183};
  EXPECT_EQ(tokenizer_->encode(sentence), ids);
  EXPECT_EQ(tokenizer_->decode(ids), sentence);
}

TEST_F(Gpt2Files, EveryTokenIsTheOneOfEncoderJson) {
  const fs::path path = fs::path(default_gpt2_merges).parent_path() / "encoder.json";
  if (!fs::exists(path)) GTEST_SKIP() << "no " << path << "; fetch it with data/fetch_gpt2_tokenizer.sh";
  const auto encoder = nlohmann::json::parse(read_file(path));
  ASSERT_EQ(encoder.size(), 50257u);
  EXPECT_EQ(encoder["<|endoftext|>"], 50256);
  for (int32_t id = 0; id < 50256; ++id)
    ASSERT_EQ(encoder.value(byte_symbols(tokenizer_->decode(id)), -1), id);
}

TEST_F(Gpt2Files, LlmcFileAndJsonGiveTheSameTokenizer) {
  const auto from_llmc =
      make_gpt2_tokenizer(parse_llmc_tokenizer(llmc_tokenizer_bytes(*tokenizer_), "gpt2.bin"));
  EXPECT_EQ(from_llmc->fingerprint(), tokenizer_->fingerprint());
  EXPECT_EQ(load_tokenizer(tokenizer_->to_json(), "json")->fingerprint(), tokenizer_->fingerprint());
}

TEST_F(Gpt2Files, ShakespeareAsLlmc) {
  const std::string text = shakespeare();
  if (text.empty()) GTEST_SKIP() << "no data/cache/shakespeare.txt; fetch it with data/fetch_shakespeare.sh";
  ASSERT_EQ(sha256_hex(text), "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed");
  // Sections end with an empty line; each begins with the end-of-text token.
  std::vector<int32_t> ids;
  for (size_t begin = 0; begin < text.size();) {
    const size_t gap = text.find("\n\n", begin);
    const size_t end = gap == std::string::npos ? text.size() : gap + 2;
    ids.push_back(50256);
    tokenizer_->encode(std::string_view(text).substr(begin, end - begin), ids);
    begin = end;
  }
  ASSERT_EQ(ids.size(), 338028u);
  EXPECT_EQ(std::vector<int32_t>(ids.begin(), ids.begin() + 8),
            (std::vector<int32_t>{50256, 5962, 22307, 25, 198, 8421, 356, 5120}));
  const std::vector<uint16_t> narrow(ids.begin(), ids.end());
  const std::string bytes = bytes_of(narrow);
  EXPECT_EQ(sha256_hex(std::string_view(bytes).substr(0, 2 * 32768)),
            "d5ad4a9d91976783859c221697e3e0488675d095f676fe3fedac339caa4c193a");
  EXPECT_EQ(sha256_hex(std::string_view(bytes).substr(2 * 32768)),
            "25f64f50080b1237d8d70e36d9ae43ca00855bbb7d5dcac6118c3cb75eeb7b2f");
}

// A run without any break is one piece; a quadratic merge would need hours for it.
TEST_F(Gpt2Files, LongRunsAreNotQuadratic) {
  const std::clock_t start = std::clock();  // of this process: other load must not fail the test
  for (const std::string unit : {"a", " ", "!", "\xE6\xBC\xA2", "7", "\n"}) {
    std::string text;
    while (text.size() < 300000)
      text += unit;
    text += "x";
    const std::vector<int32_t> ids = tokenizer_->encode(text);
    EXPECT_EQ(tokenizer_->decode(ids), text);
  }
  EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 20);
}

}  // namespace
}  // namespace hearth
