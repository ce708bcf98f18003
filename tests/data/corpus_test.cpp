// open_corpus: text and token files, splits, tokenizers, and the sentences for everything that can be wrong.
#include <cmath>

#include "data/data_test_support.h"
#include "data/dataset.h"

namespace hearth {
namespace {

class CorpusTest : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, std::string_view content) {
    return write_file(dir_ / name, content);
  }
  DataConfig config(const std::string& train, const std::string& tokenizer = "auto") {
    DataConfig config;
    config.train = train;
    config.tokenizer = tokenizer;
    return config;
  }
  std::string path(const std::string& name) { return (dir_ / name).string(); }
  TempDir dir_;
};

// All tokens of a dataset of one shard with context 1.
std::vector<int32_t> tokens_of(const Dataset& dataset) {
  std::vector<int32_t> tokens;
  int32_t input = 0;
  int32_t target = 0;
  for (int64_t i = 0; i < dataset.samples(); ++i) {
    dataset.read_sample(i, {&input, 1}, {&target, 1});
    tokens.push_back(input);
  }
  tokens.push_back(target);
  return tokens;
}

TEST_F(CorpusTest, TextIsSplitByCharactersAndThenTokenised) {
  // 21 characters, 28 bytes: int(0.9 * 21) = 18 characters for training.
  write("t.txt", "abcdefgh\u00E9\u00E9\u00E9\u00E9\u00E9\u00E9\u00E9qrstuv");
  const Corpus bytes = open_corpus(config(path("t.txt")), 1, 0);
  EXPECT_EQ(bytes.train.tokens(), 25);
  EXPECT_EQ(bytes.val.tokens(), 3);
  EXPECT_EQ(tokens_of(bytes.val), (std::vector<int32_t>{'t', 'u', 'v'}));
  EXPECT_EQ(bytes.tokenizer->kind(), "byte");
  EXPECT_EQ(bytes.vocab, 256);
  const Corpus chars = open_corpus(config(path("t.txt"), "char"), 1, 0);
  EXPECT_EQ(chars.train.tokens(), 18);
  EXPECT_EQ(chars.val.tokens(), 3);
  EXPECT_EQ(chars.vocab, 15);  // the characters of the validation part too
  expect_contains(chars.description, "t.txt");
  expect_contains(chars.description, "char tokenizer (15 ids)");
}

TEST_F(CorpusTest, OwnValidationFilesAndSeveralTexts) {
  write("a.txt", "aaaa");
  write("b.txt", "bbbb");
  write("v.txt", "xyz");
  DataConfig wanted = config(path("a.txt") + " , " + path("b.txt"), "char");
  wanted.val = path("v.txt");
  const Corpus corpus = open_corpus(wanted, 1, 0);
  EXPECT_EQ(tokens_of(corpus.train), (std::vector<int32_t>{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(tokens_of(corpus.val), (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(corpus.vocab, 5);
}

TEST_F(CorpusTest, SplitLiesWhereverTheTextsMeet) {
  write("a.txt", "aaaa");
  write("b.txt", "bbbbbb");
  DataConfig wanted = config(path("?.txt"), "byte");
  wanted.val_fraction = 0.3;
  const Corpus inside = open_corpus(wanted, 1, 0);
  EXPECT_EQ(tokens_of(inside.train), (std::vector<int32_t>{'a', 'a', 'a', 'a', 'b', 'b', 'b'}));
  EXPECT_EQ(tokens_of(inside.val), (std::vector<int32_t>{'b', 'b', 'b'}));
  wanted.val_fraction = 0.6;
  const Corpus between = open_corpus(wanted, 1, 0);
  EXPECT_EQ(tokens_of(between.train), (std::vector<int32_t>{'a', 'a', 'a', 'a'}));
  EXPECT_EQ(between.val.tokens(), 6);
}

TEST_F(CorpusTest, DocumentsAreSeparatedWhereTheTokenizerCan) {
  write("a.txt", "he");
  write("b.txt", "he");
  write("v.txt", "hehe");
  write("vocab.bpe", "#version: 0.2\nh e\n");
  DataConfig wanted = config(path("a.txt") + "," + path("b.txt"), path("vocab.bpe"));
  wanted.val = path("v.txt");
  const Corpus corpus = open_corpus(wanted, 1, 0);
  EXPECT_EQ(tokens_of(corpus.train), (std::vector<int32_t>{256, 257, 256}));
  EXPECT_EQ(tokens_of(corpus.val), (std::vector<int32_t>{256, 256}));
  EXPECT_EQ(corpus.vocab, 258);
}

TEST_F(CorpusTest, TokenFilesWithTheTokenizerBesideThem) {
  write("train_1.bin", bytes_of(std::vector<uint16_t>{0, 1, 2, 1}));
  write("train_2.bin", bytes_of(std::vector<uint16_t>{2, 2, 2}));
  write("val.bin", bytes_of(std::vector<uint16_t>{1, 1}));
  write("tokenizer.json", make_char_tokenizer("abc")->to_json());
  DataConfig wanted = config(path("train_*.bin"));
  wanted.val = path("val.bin");
  const Corpus corpus = open_corpus(wanted, 1, 0);
  EXPECT_EQ(corpus.train.samples(), 5);
  EXPECT_EQ(corpus.val.samples(), 1);
  EXPECT_EQ(corpus.tokenizer->decode(2), "c");
  EXPECT_EQ(corpus.vocab, 3);
  expect_contains(corpus.description, "2 shards, 7 tokens");
  // A larger model vocabulary is allowed, but the data must keep to its tokenizer.
  EXPECT_EQ(open_corpus(wanted, 1, 128).vocab, 3);
  write("train_2.bin", bytes_of(std::vector<uint16_t>{2, 3, 2}));
  expect_contains(error_of([&] { open_corpus(wanted, 1, 128); }), "token id 3 at offset 1");
  expect_contains(error_of([&] { open_corpus(wanted, 1, 2); }), "model.vocab is 2, but the char tokenizer");
}

TEST_F(CorpusTest, NanoGptFolder) {
  write("train.bin", bytes_of(std::vector<uint16_t>{0, 1, 2, 1}));
  write("val.bin", bytes_of(std::vector<uint16_t>{0, 1}));
  write("meta.json", R"({"vocab_size":3,"itos":{"0":"z","1":"y","2":"x"}})");
  DataConfig wanted = config(path("train.bin"));
  wanted.val = path("val.bin");
  const Corpus corpus = open_corpus(wanted, 1, 0);
  EXPECT_EQ(corpus.tokenizer->decode(0), "z");
  fs::remove(dir_ / "meta.json");
  const Corpus unknown = open_corpus(wanted, 1, 3);
  EXPECT_EQ(unknown.tokenizer, nullptr);
  EXPECT_EQ(unknown.vocab, 0);
  expect_contains(error_of([&] { open_corpus(wanted, 1, 2); }), "token id 2 at offset 2");
}

TEST_F(CorpusTest, LlmcShardsImplyGpt2sVocabulary) {
  write("train.bin", shard_bytes(20240520, 1, std::vector<uint16_t>{50256, 1, 2, 1}));
  DataConfig wanted = config(path("train.bin"));
  wanted.val_fraction = 0.5;
  EXPECT_EQ(open_corpus(wanted, 1, 0).vocab, 50257);
  write("train.bin", shard_bytes(20240520, 1, std::vector<uint16_t>{50257, 1, 2, 1}));
  expect_contains(error_of([&] { open_corpus(wanted, 1, 0); }), "token id 50257 at offset 0");
}

TEST_F(CorpusTest, TokenFilesAreSplitAtTheToken) {
  write("a.bin", bytes_of(std::vector<uint16_t>{0, 1, 2, 3}));
  write("b.bin", bytes_of(std::vector<uint16_t>{4, 5, 6, 7, 8, 9}));
  DataConfig wanted = config(path("a.bin") + "," + path("b.bin"));
  wanted.val_fraction = 0.3;
  const Corpus corpus = open_corpus(wanted, 1, 10);
  EXPECT_EQ(corpus.train.tokens(), 7);
  EXPECT_EQ(tokens_of(corpus.val), (std::vector<int32_t>{7, 8, 9}));
}

TEST_F(CorpusTest, ContradictingTokenizersAreRefused) {
  write("train.bin", bytes_of(std::vector<uint16_t>(20, 2)));
  write("tokenizer.json", make_char_tokenizer("abc")->to_json());
  expect_contains(error_of([&] { open_corpus(config(path("train.bin"), "byte"), 1, 0); }),
                  "is another one (char");
  fs::create_directory(dir_ / "other");
  write("other/val.bin", bytes_of(std::vector<uint16_t>{0, 1}));
  write("other/tokenizer.json", make_char_tokenizer("xyz")->to_json());
  DataConfig wanted = config(path("train.bin"));
  wanted.val = path("other/val.bin");
  expect_contains(error_of([&] { open_corpus(wanted, 1, 0); }), "tokenizers of the data differ");
  EXPECT_EQ(open_corpus(config(path("train.bin"), "char"), 1, 0).vocab, 3);
  fs::remove(dir_ / "tokenizer.json");
  expect_contains(error_of([&] { open_corpus(config(path("train.bin"), "char"), 1, 0); }),
                  "no char tokenizer");
}

TEST_F(CorpusTest, MistakesAreNamed) {
  const std::string text = write("t.txt", "a text that is long enough for a sample");
  const std::string tokens = write("t.bin", bytes_of(std::vector<uint16_t>(40, 1)));
  const auto open = [&](const std::string& train) { open_corpus(config(train), 8, 0); };
  expect_contains(error_of([&] { open(path("no.txt")); }), "there is no file");
  expect_contains(error_of([&] { open(path("no_*.bin")); }), "no file matches");
  expect_contains(error_of([&] { open(text + "," + tokens); }), "use only one kind");
  expect_contains(error_of([&] { open(dir_.path().string()); }), "is a folder");
  expect_contains(error_of([&] { open(write("x.jsonl", "{}")); }), "hearth prepare");
  expect_contains(error_of([&] { open(write("empty.txt", "")); }), "is empty");
  expect_contains(error_of([&] { open(write("empty.bin", "")); }), "is empty");
  expect_contains(error_of([&] { open(" , "); }, ExitCode::usage), "data.train is empty");
  DataConfig fraction = config(text);
  for (const double wrong : {0.0, 1.0, -0.5, 7.0, std::nan("")}) {
    fraction.val_fraction = wrong;
    expect_contains(error_of([&] { open_corpus(fraction, 8, 0); }, ExitCode::usage), "data.val_fraction");
  }
  const std::string foreign = write("hellaswag.bin", shard_bytes(20240522, 1, std::vector<uint16_t>{1, 2}));
  expect_contains(error_of([&] { open(foreign); }), "llm.c evaluation file");
}

TEST_F(CorpusTest, TextThatIsNotUtf8NamesTheFile) {
  write("latin1.txt", "caf\xE9 au lait, deux fois");
  const std::string sentence = error_of([&] { open_corpus(config(path("latin1.txt"), "char"), 1, 0); });
  expect_contains(sentence, "latin1.txt");
  expect_contains(sentence, "0xe9 at offset 3");
}

TEST_F(CorpusTest, TooLittleDataSaysWhichPart) {
  write("t.txt", std::string(100, 'a'));
  const std::string sentence = error_of([&] { open_corpus(config(path("t.txt")), 10, 0); });
  expect_contains(sentence, "held out by data.val_fraction");
  expect_contains(sentence, "found 10 tokens, but a sample needs context + 1 = 11");
  expect_contains(error_of([&] { open_corpus(config(path("t.txt")), 90, 0); }), "data.train: ");
}

TEST_F(CorpusTest, MissingGpt2FileNamesTheScript) {
  write("t.txt", "some text");
  // The default place is relative: from an empty folder the file is missing.
  const fs::path before = fs::current_path();
  fs::current_path(dir_.path());
  const std::string sentence = error_of([&] { open_corpus(config("t.txt", "gpt2"), 1, 0); });
  fs::create_directories(dir_ / "data/cache/gpt2");
  write(default_gpt2_merges, "#version: 0.2\nh e\n");
  const std::string damaged = error_of([&] { open_corpus(config("t.txt", "gpt2"), 1, 0); });
  fs::current_path(before);
  expect_contains(sentence, "fetch_gpt2_tokenizer.sh");
  expect_contains(damaged, "vocabulary of 258, but GPT-2's has 50257");
}

TEST_F(CorpusTest, TheCommittedCorpusOpens) {
  const Corpus corpus = open_corpus(config("data/tiny.txt"), 64, 0);
  EXPECT_EQ(corpus.train.tokens() + corpus.val.tokens(), 37474);
  EXPECT_EQ(sha256_hex(read_file("data/tiny.txt")),
            "322c91de032eff75aa08c1e4f8da1c17b030527dd3bfe5b25d724d7765991c29");
}

// nanoGPT's numbers for Tiny Shakespeare.
class Shakespeare : public CorpusTest {
 protected:
  static constexpr const char* path_ = "data/cache/shakespeare.txt";
  void SetUp() override {
    if (!fs::exists(path_)) GTEST_SKIP() << "no " << path_ << "; fetch it with data/fetch_shakespeare.sh";
  }
};

std::string sha256_of_tokens(const Dataset& dataset) {
  const std::vector<int32_t> tokens = tokens_of(dataset);
  return sha256_hex(bytes_of(std::vector<uint16_t>(tokens.begin(), tokens.end())));
}

TEST_F(Shakespeare, CharacterLevel) {
  const Corpus corpus = open_corpus(config(path_, "char"), 1, 0);
  EXPECT_EQ(corpus.vocab, 65);
  EXPECT_EQ(corpus.train.tokens(), 1003854);
  EXPECT_EQ(corpus.val.tokens(), 111540);
  EXPECT_EQ(sha256_of_tokens(corpus.train),
            "6ec305602a99ac2802745a134e1f5e33e2231b4855525b00b9aebb730ac2626f");
  EXPECT_EQ(sha256_of_tokens(corpus.val), "d37d30cc0c8327c270d493299c3dca54135f6d5f1c9ef60cda78076e311204b1");
}

TEST_F(Shakespeare, Gpt2) {
  if (!fs::exists(default_gpt2_merges))
    GTEST_SKIP() << "no " << default_gpt2_merges << "; fetch it with data/fetch_gpt2_tokenizer.sh";
  const Corpus corpus = open_corpus(config(path_, "gpt2"), 1, 0);
  EXPECT_EQ(corpus.train.tokens(), 301966);
  EXPECT_EQ(corpus.val.tokens(), 36059);
  const std::vector<int32_t> val = tokens_of(corpus.val);
  EXPECT_EQ(std::vector<int32_t>(val.begin(), val.begin() + 6),
            (std::vector<int32_t>{30, 198, 198, 28934, 8895, 46}));
}

}  // namespace
}  // namespace hearth
