// prepare: the shards it writes, where it cuts, and that nothing half-written is left.
#include "data/prepare.h"

#include <csignal>
#include <random>
#include <set>

#include <sys/resource.h>

#include "data/data_test_support.h"
#include "data/dataset.h"
#include "data/documents.h"
#include "data/gpt2_tokenizer.h"
#include "data/utf8.h"

namespace hearth {
namespace {

std::vector<int32_t> tokens_in(const fs::path& file, int64_t vocab) {
  const auto shard = open_token_file(file, vocab);
  std::vector<int32_t> tokens(shard->size());
  shard->read(0, tokens);
  return tokens;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename());
  return names;
}

class Prepare : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, std::string_view content) {
    return write_file(dir_ / name, content);
  }
  PrepareOptions options(std::vector<fs::path> inputs, const std::string& tokenizer = "byte") {
    PrepareOptions options;
    options.inputs = std::move(inputs);
    options.tokenizer = tokenizer;
    options.out = dir_ / "out";
    return options;
  }
  TempDir dir_;
};

TEST_F(Prepare, WritesShardsThatOpenCorpusReads) {
  std::string text;
  for (int i = 0; i < 1000; ++i)
    text += "line " + std::to_string(i) + " \u00E9\n";
  const PrepareResult result = prepare(options({write("t.txt", text)}, "char"));
  EXPECT_EQ(result.documents, 1);
  EXPECT_EQ(result.train_tokens + result.val_tokens, result.characters);
  EXPECT_EQ(names_in(dir_ / "out"),
            (std::set<std::string>{"train_000001.bin", "val_000000.bin", "tokenizer.json"}));
  EXPECT_EQ(result.files.size(), 3u);
  for (const fs::path& file : result.files)
    EXPECT_TRUE(fs::exists(file)) << file;

  DataConfig config;
  config.train = (dir_ / "out/train_*.bin").string();
  config.val = (dir_ / "out/val_*.bin").string();
  const Corpus from_shards = open_corpus(config, 8, 0);
  config = DataConfig();
  config.train = (dir_ / "t.txt").string();
  config.tokenizer = "char";
  const Corpus from_text = open_corpus(config, 8, 0);
  EXPECT_EQ(from_shards.vocab, result.vocab);
  EXPECT_EQ(from_shards.tokenizer->fingerprint(), from_text.tokenizer->fingerprint());
  for (const bool val : {false, true}) {
    const Dataset& a = val ? from_shards.val : from_shards.train;
    const Dataset& b = val ? from_text.val : from_text.train;
    ASSERT_EQ(a.tokens(), b.tokens());
    std::vector<int32_t> inputs_a(8), inputs_b(8), targets(8);
    for (int64_t i = 0; i < a.samples(); ++i) {
      a.read_sample(i, inputs_a, targets);
      b.read_sample(i, inputs_b, targets);
      ASSERT_EQ(inputs_a, inputs_b);
    }
  }
}

TEST_F(Prepare, EndOfTextBeforeEachDocument) {
  PrepareOptions wanted =
      options({write("a.jsonl", "{\"text\":\"he\"}\n\n{\"id\":7,\"text\":\"hehe\"}\r\n{\"text\":\"\"}"),
               write("b.txt", "eh")},
              "gpt2");
  wanted.gpt2_merges = write("vocab.bpe", "#version: 0.2\nh e\n");
  wanted.val_fraction = 0.0;
  const PrepareResult result = prepare(wanted);
  EXPECT_EQ(result.documents, 4);
  EXPECT_EQ(result.val_tokens, 0);
  EXPECT_EQ(names_in(dir_ / "out"), (std::set<std::string>{"train_000001.bin", "tokenizer.json"}));
  EXPECT_EQ(tokens_in(dir_ / "out/train_000001.bin", 258),
            (std::vector<int32_t>{257, 256, 257, 256, 256, 257, 68, 71}));
}

TEST_F(Prepare, ADocumentAcrossTheBorderIsCut) {
  PrepareOptions wanted = options({write("a.txt", "aaaa"), write("b.txt", "bbbbbb")});
  wanted.val_fraction = 0.3;
  prepare(wanted);
  EXPECT_EQ(tokens_in(dir_ / "out/train_000001.bin", 256),
            (std::vector<int32_t>{'a', 'a', 'a', 'a', 'b', 'b', 'b'}));
  EXPECT_EQ(tokens_in(dir_ / "out/val_000000.bin", 256), (std::vector<int32_t>{'b', 'b', 'b'}));
}

TEST_F(Prepare, StartsANewShardWhenOneIsFull) {
  PrepareOptions wanted = options({write("a.txt", "0123456789abcdefghijklmnopqrst")});
  wanted.shard_tokens = 10;
  const PrepareResult result = prepare(wanted);
  EXPECT_EQ(result.train_tokens, 27);
  EXPECT_EQ(names_in(dir_ / "out"),
            (std::set<std::string>{"train_000001.bin", "train_000002.bin", "train_000003.bin",
                                   "val_000000.bin", "tokenizer.json"}));
  EXPECT_EQ(tokens_in(dir_ / "out/train_000002.bin", 256).front(), 'a');
  EXPECT_EQ(tokens_in(dir_ / "out/train_000003.bin", 256).size(), 7u);
}

TEST_F(Prepare, WideVocabulariesGetUint32) {
  std::string text;
  for (char32_t c = 0x20; c < 0x20 + 70000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    append_utf8(text, c);
  }
  PrepareOptions wanted = options({write("a.txt", text)}, "char");
  wanted.val_fraction = 0;
  const PrepareResult result = prepare(wanted);
  EXPECT_EQ(result.vocab, 67952);
  EXPECT_EQ(tokens_in(dir_ / "out/train_000001.bin", result.vocab).back(), 67951);
}

// Chunks must not show: a text of many megabytes gives the ids of the text as a whole.
TEST_F(Prepare, ChunksDoNotChangeTheTokens) {
  std::mt19937 random(5);
  const std::string parts[] = {"a",      "aa", " ",  "  ", "\n", "\n\n", "\u00A0",
                               "\u6F22", ".",  "..", "'s", "7",  "\t"};
  std::string text;
  while (text.size() < 100000)
    text += parts[random() % std::size(parts)];
  const auto tokenizer = make_gpt2_tokenizer(
      parse_merges_file("a a\n\xC4\xA0 \xC4\xA0\n. .\n\xC4\xA0 a\n' s\n\xC4\x8A \xC4\x8A\n", "m"));
  const std::vector<int32_t> whole = tokenizer->encode(text);
  for (const size_t wanted : {1, 2, 7, 100, 5000}) {
    std::vector<int32_t> pieces;
    for (std::string_view rest = text; !rest.empty();) {
      const size_t length = safe_break(rest, wanted);
      ASSERT_GT(length, 0u);
      tokenizer->encode(rest.substr(0, length), pieces);
      rest.remove_prefix(length);
    }
    EXPECT_EQ(pieces, whole) << wanted;
  }
  EXPECT_EQ(safe_break("abc def", 5), 3u);
  EXPECT_EQ(safe_break("abcdef ghi", 2), 6u);
  EXPECT_EQ(safe_break("abcdef", 2), 6u);
  EXPECT_EQ(safe_break("\u00A0 \u6F22 x", 4), 6u);
}

TEST_F(Prepare, MalformedJsonLinesNameFileAndLine) {
  const auto fails = [&](const char* content) {
    const std::string sentence = error_of([&] { prepare(options({write("d.jsonl", content)})); });
    EXPECT_FALSE(fs::exists(dir_ / "out"));
    return sentence;
  };
  expect_contains(fails("{\"text\":\"a\"}\n\n{\"text\":\n"), "d.jsonl:3: not valid JSON");
  expect_contains(fails("[1]\n"), "d.jsonl:1: expected an object");
  expect_contains(fails("{\"text\":\"a\"}\n{\"txt\":\"a\"}\n"), "d.jsonl:2: the object has no \"text\"");
  expect_contains(fails("{\"text\":[]}\n"), "d.jsonl:1: \"text\" is array");
  expect_contains(fails("{\"text\":\"a\xFF\"}\n"), "d.jsonl:1");
  expect_contains(fails("\n\n"), "no text");
}

TEST_F(Prepare, MistakesAreNamed) {
  const fs::path text = write("t.txt", "some text");
  const auto usage = [&](PrepareOptions wanted) {
    return error_of([&] { prepare(wanted); }, ExitCode::usage);
  };
  PrepareOptions wanted = options({text});
  wanted.val_fraction = 1.0;
  expect_contains(usage(wanted), "--val-fraction is 1");
  expect_contains(usage(options({text}, "bpe")), "expected byte, char or gpt2");
  expect_contains(usage(options({})), "no input files");
  wanted = options({text});
  wanted.out.clear();
  expect_contains(usage(wanted), "--out is empty");
  expect_contains(error_of([&] { prepare(options({dir_ / "missing.txt"})); }), "missing.txt");
  expect_contains(error_of([&] { prepare(options({write("latin1.txt", "\xE9")}, "char")); }), "latin1.txt");
  expect_contains(error_of([&] { prepare(options({write("empty.txt", "")})); }), "is empty");
  EXPECT_FALSE(fs::exists(dir_ / "out"));
}

TEST_F(Prepare, NeverMixesWithFilesThatAreThere) {
  PrepareOptions wanted = options({write("t.txt", "some text")});
  fs::create_directory(dir_ / "out");
  wanted.out = dir_ / "out/";  // an empty folder, named with a slash
  prepare(wanted);
  EXPECT_TRUE(fs::exists(dir_ / "out/tokenizer.json"));
  expect_contains(error_of([&] { prepare(wanted); }), "already holds files");
  wanted.out = dir_ / "t.txt";
  expect_contains(error_of([&] { prepare(wanted); }), "is a file");
}

// A full disk (here: a limit on file sizes) leaves neither the folder nor its unfinished double.
TEST_F(Prepare, NothingHalfWrittenIsLeft) {
  const fs::path text = write("t.txt", std::string(100000, 'a'));
  void (*handler)(int) = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit = {50000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  const std::string sentence = error_of([&] { prepare(options({text})); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  expect_contains(sentence, "train_000001.bin");
  expect_contains(sentence, "File too large");
  EXPECT_EQ(names_in(dir_.path()), (std::set<std::string>{"t.txt"}));
}

}  // namespace
}  // namespace hearth
