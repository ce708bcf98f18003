// Byte and char tokenizers, and reading tokenizer files of all kinds.
#include "data/tokenizer.h"

#include "data/data_test_support.h"

namespace hearth {
namespace {

TEST(ByteTokenizer, EveryByteIsItsOwnId) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->vocab(), 256);
  std::string all;
  for (int byte = 0; byte < 256; ++byte)
    all += static_cast<char>(byte);
  const std::vector<int32_t> ids = tokenizer->encode(all);
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(ids[byte], byte);
  EXPECT_EQ(tokenizer->decode(ids), all);
  EXPECT_EQ(tokenizer->end_of_text(), std::nullopt);
  expect_contains(error_of([&] { tokenizer->decode(256); }), "token id 256");
  expect_contains(error_of([&] { tokenizer->decode(-1); }), "token id -1");
}

TEST(CharTokenizer, IdsAreTheSortedCharacters) {
  const auto tokenizer = make_char_tokenizer("banana \xC3\xA9\n");
  EXPECT_EQ(tokenizer->vocab(), 6);  // \n, space, a, b, n, e acute
  EXPECT_EQ(tokenizer->encode("\n abn\xC3\xA9"), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(tokenizer->decode({3, 2, 4, 2, 5}), "bana\xC3\xA9");
  expect_contains(error_of([&] { tokenizer->decode(6); }), "vocabulary of 6");
}

TEST(CharTokenizer, UnknownCharacterIsNamedWithThePlaceAndTheVocabulary) {
  const auto tokenizer = make_char_tokenizer("abc");
  const std::string sentence = error_of([&] { tokenizer->encode("ab\xC3\xA9"); });
  expect_contains(sentence, "U+00E9 '\xC3\xA9' at byte 2");
  expect_contains(sentence, "abc");
}

TEST(CharTokenizer, RefusesWhatIsNotUtf8) {
  expect_contains(error_of([] { make_char_tokenizer("ab\xE9z"); }), "0xe9 at offset 2");
  const auto tokenizer = make_char_tokenizer("ab");
  expect_contains(error_of([&] { tokenizer->encode("a\xFF"); }), "offset 1");
  expect_contains(error_of([] { make_char_tokenizer(""); }), "no characters");
}

TEST(TokenizerJson, RoundTripGivesAnEqualTokenizer) {
  using namespace std::string_literals;
  const std::unique_ptr<Tokenizer> originals[] = {make_byte_tokenizer(),
                                                  make_char_tokenizer("\0\x01\"\\/ \n\t\xF0\x9F\x99\x82z"s)};
  for (const auto& original : originals) {
    const auto copy = load_tokenizer(original->to_json(), "test");
    EXPECT_EQ(copy->kind(), original->kind());
    EXPECT_EQ(copy->vocab(), original->vocab());
    EXPECT_EQ(copy->to_json(), original->to_json());
    EXPECT_EQ(copy->fingerprint(), original->fingerprint());
    for (int32_t id = 0; id < original->vocab(); ++id)
      EXPECT_EQ(copy->decode(id), original->decode(id));
  }
  EXPECT_NE(originals[0]->fingerprint(), originals[1]->fingerprint());
  EXPECT_EQ(make_byte_tokenizer()->fingerprint().size(), 64u);
}

TEST(TokenizerJson, MalformedDocumentsAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "not valid JSON"},
      {"[]", "not a tokenizer"},
      {"{\"a\":1}", "not a tokenizer"},
      {"{\"hearth_tokenizer\":2,\"kind\":\"byte\"}", "format 2"},
      {"{\"hearth_tokenizer\":1}", "\"kind\""},
      {"{\"hearth_tokenizer\":1,\"kind\":7}", "\"kind\""},
      {"{\"hearth_tokenizer\":1,\"kind\":\"char\"}", "\"characters\""},
      {"{\"hearth_tokenizer\":1,\"kind\":\"char\",\"characters\":3}", "\"characters\""},
      {"{\"hearth_tokenizer\":1,\"kind\":\"char\",\"characters\":\"\"}", "no characters"},
      {"{\"hearth_tokenizer\":1,\"kind\":\"char\",\"characters\":\"aba\"}", "twice"},
      {"{\"hearth_tokenizer\":1,\"kind\":\"gpt2\"}", "\"merges\""},
      {"{\"hearth_tokenizer\":1,\"kind\":\"gpt2\",\"merges\":[1]}", "merge 0 is not a string"},
      {"{\"hearth_tokenizer\":1,\"kind\":\"gpt2\",\"merges\":[\"a b\",\"xy z\"]}", "merge 1"},
      {"{\"model\":{},\"added_tokens\":[]}", "another program"},
      {"{\"itos\":{\"0\":\"a\",\"2\":\"b\"}}", "id 1"},
      {"{\"itos\":[\"ab\"]}", "one character"},
  };
  for (const auto& [json, part] : cases) {
    const std::string sentence = error_of([&] { load_tokenizer(json, "some.json"); });
    expect_contains(sentence, "some.json");
    expect_contains(sentence, part);
  }
}

TEST(TokenizerJson, ReadsNanoGptsMetaAsJson) {
  // Not sorted: the ids of the file count, not the order of the characters.
  for (const char* json :
       {R"({"vocab_size":3,"itos":{"0":"c","1":"\n","2":"a"},"stoi":{}})", R"({"itos":["c","\n","a"]})"}) {
    const auto tokenizer = load_tokenizer(json, "meta.json");
    EXPECT_EQ(tokenizer->kind(), "char");
    EXPECT_EQ(tokenizer->encode("ac\n"), (std::vector<int32_t>{2, 0, 1}));
    EXPECT_EQ(load_tokenizer(tokenizer->to_json(), "copy")->encode("ac\n"), (std::vector<int32_t>{2, 0, 1}));
  }
}

TEST(TokenizerFile, UnknownContentIsDescribed) {
  const TempDir dir;
  const auto load = [&](std::string_view content) {
    return error_of([&] { load_tokenizer_file(write_file(dir.path() / "t", content)); });
  };
  expect_contains(load(""), "is empty");
  expect_contains(load("\x7F"
                       "ELF\x01\x02"),
                  "is not a tokenizer");
  expect_contains(error_of([&] { load_tokenizer_file(dir.path() / "missing.json"); }), "missing.json");
  std::string encoder = "{\"!\":0";
  for (int id = 1; id < 300; ++id)
    encoder += ",\"t" + std::to_string(id) + "\":" + std::to_string(id);
  expect_contains(load(encoder + "}"), "encoder.json");
  write_file(dir.path() / "t", make_byte_tokenizer()->to_json());
  EXPECT_EQ(load_tokenizer_file(dir.path() / "t")->kind(), "byte");
}

}  // namespace
}  // namespace hearth
