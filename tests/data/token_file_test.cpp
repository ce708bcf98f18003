// Token files: what is read, what is refused and in which words, and offsets beyond 32 bits.
#include <fcntl.h>
#include <unistd.h>

#include "data/data_test_support.h"
#include "data/dataset.h"
#include "data/shards.h"

namespace hearth {
namespace {

std::vector<int32_t> all_tokens(const TokenShard& shard) {
  std::vector<int32_t> tokens(shard.size());
  shard.read(0, tokens);
  return tokens;
}

class TokenFile : public ::testing::Test {
 protected:
  std::string refusal(std::string_view content, const std::string& name = "train.bin", int64_t vocab = 100) {
    const fs::path path = write_file(dir_.path() / name, content);
    return error_of([&] { open_token_file(path, vocab); });
  }
  std::unique_ptr<TokenShard> open(std::string_view content, int64_t vocab) {
    return open_token_file(write_file(dir_.path() / "train.bin", content), vocab);
  }
  TempDir dir_;
};

TEST_F(TokenFile, ReadsAllThreeFormats) {
  const std::vector<uint16_t> narrow = {0, 1, 99, 65535};
  const std::vector<uint32_t> wide = {0, 70000, 128255};
  EXPECT_EQ(all_tokens(*open(bytes_of(narrow), 65536)), (std::vector<int32_t>{0, 1, 99, 65535}));
  EXPECT_EQ(all_tokens(*open(shard_bytes(20240520, 1, narrow), 65536)),
            (std::vector<int32_t>{0, 1, 99, 65535}));
  EXPECT_EQ(all_tokens(*open(shard_bytes(20240801, 7, wide), 128256)),
            (std::vector<int32_t>{0, 70000, 128255}));
  const auto shard = open(shard_bytes(20240520, 1, narrow), 65536);
  std::vector<int32_t> part(2);
  shard->read(1, part);
  EXPECT_EQ(part, (std::vector<int32_t>{1, 99}));
}

TEST_F(TokenFile, EveryIdIsCheckedAgainstTheVocabulary) {
  std::vector<uint16_t> tokens(5000, 3);
  tokens[12] = 65;
  tokens[4000] = 65;
  for (const std::string& content : {bytes_of(tokens), shard_bytes(20240520, 1, tokens)}) {
    const std::string sentence = refusal(content, "train.bin", 65);
    expect_contains(sentence, "token id 65 at offset 12 of ");
    expect_contains(sentence, "train.bin is not below the vocabulary of 65");
    EXPECT_EQ(open(content, 66)->size(), 5000);
    EXPECT_EQ(open(content, 0)->size(), 5000);
  }
  // The last token, in the second block of the check.
  std::vector<uint32_t> wide((1 << 20) + 7, 1);
  wide.back() = 4000000000u;
  for (const int64_t vocab : {128256, 0})
    expect_contains(refusal(shard_bytes(20240801, 7, wide), "train.bin", vocab),
                    "token id 4000000000 at offset 1048582 of ");
}

TEST_F(TokenFile, ForeignFormatsAreNamed) {
  const std::vector<uint16_t> tokens = {1, 2};
  expect_contains(refusal(shard_bytes(20240522, 1, tokens)), "llm.c evaluation file");
  expect_contains(refusal(shard_bytes(20240326, 3, tokens)), "llm.c model checkpoint");
  expect_contains(refusal(shard_bytes(20240328, 2, tokens)), "llm.c tokenizer file");
  expect_contains(refusal(std::string("MMIDIDX\0\0\1\0\0\0", 13)), "Megatron index");
  expect_contains(refusal("\x93NUMPY\1\0\0"), "NumPy");
  write_file(dir_.path() / "x_text_document.idx", "MMIDIDX");
  expect_contains(refusal(bytes_of(tokens), "x_text_document.bin"), "Megatron data file");
}

TEST_F(TokenFile, DamageIsNamedWithTheArithmetic) {
  const std::vector<uint16_t> tokens = {1, 2, 3, 4};
  const std::string good = shard_bytes(20240520, 1, tokens);
  expect_contains(refusal(""), "is empty");
  expect_contains(refusal("abc"), "3 bytes, an odd number");
  expect_contains(refusal(good.substr(0, 100)), "100 bytes, but the header of an llm.c shard alone has 1024");
  const std::string cut = refusal(good.substr(0, good.size() - 2));
  expect_contains(cut, "announces 4 tokens, that is a file of 1,032 bytes, but it has 1,030");
  expect_contains(refusal(good + "xx"), "1,034");
  expect_contains(refusal(shard_bytes(20240520, 2, tokens)), "version 2; expected version 1");
  expect_contains(refusal(shard_bytes(20240801, 1, tokens)), "version 1; expected version 7");
  std::string negative = good;
  negative[11] = '\x80';
  expect_contains(refusal(negative), "announces -2147483644 tokens");
  std::string none = good.substr(0, 1024);
  none[8] = 0;
  expect_contains(refusal(none), "announces 0 tokens");
  expect_contains(error_of([&] { open_token_file(dir_.path() / "no.bin", 1); }), "no.bin");
}

// A headerless file of 3 * 2^31 bytes, of which only a few are stored:
// with 65536 ids nothing need be scanned.
TEST_F(TokenFile, OffsetsBeyond32Bits) {
  const fs::path path = dir_.path() / "sparse.bin";
  const int64_t tokens = 3 * (int64_t{1} << 30);
  const uint16_t last[2] = {4711, 4712};
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(pwrite(fd, last, sizeof last, 2 * (tokens - 2)), static_cast<ssize_t>(sizeof last));
  close(fd);
  std::vector<std::unique_ptr<TokenShard>> shards;
  shards.push_back(open_token_file(path, 65536));
  EXPECT_EQ(shards[0]->size(), tokens);
  const Dataset dataset(std::move(shards), 1);
  EXPECT_EQ(dataset.samples(), tokens - 1);
  int32_t input = 0;
  int32_t target = 0;
  dataset.read_sample(tokens - 2, {&input, 1}, {&target, 1});
  EXPECT_EQ(input, 4711);
  EXPECT_EQ(target, 4712);
}

int64_t resident_bytes() {
  long pages = 0;
  long resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Reading a mapped file again and again must not let the resident set grow to the size of the file.
TEST_F(TokenFile, ResidentSetStaysSmall) {
  const int64_t tokens = 100 << 20;  // 200 MiB
  const fs::path path = write_file(dir_.path() / "big.bin", "");
  fs::resize_file(path, 2 * tokens);
  const int64_t before = resident_bytes();
  const auto shard = open_token_file(path, 1000);
  std::vector<int32_t> part(64 << 10);
  for (int64_t begin = 0; begin + std::ssize(part) <= tokens; begin += std::ssize(part))
    shard->read(begin, part);
  EXPECT_LT(resident_bytes() - before, 80 << 20);
}

TEST_F(TokenFile, KindOfFileIsSeenFromItsContentOrName) {
  const std::vector<uint16_t> tokens = {1, 2};
  EXPECT_TRUE(is_token_file(write_file(dir_.path() / "a.bin", bytes_of(tokens))));
  EXPECT_TRUE(is_token_file(write_file(dir_.path() / "shard", shard_bytes(20240520, 1, tokens))));
  EXPECT_FALSE(is_token_file(write_file(dir_.path() / "b.txt", "some text")));
  EXPECT_FALSE(is_token_file(write_file(dir_.path() / "empty.txt", "")));
  EXPECT_EQ(implied_vocab(dir_.path() / "shard"), 50257);
  EXPECT_EQ(implied_vocab(dir_.path() / "a.bin"), 0);
}

}  // namespace
}  // namespace hearth
