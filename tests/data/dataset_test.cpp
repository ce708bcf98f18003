// Datasets: sample windows over shards, phases, fingerprints.
#include "data/dataset.h"

#include <numeric>

#include "data/data_test_support.h"
#include "data/shards.h"

namespace hearth {
namespace {

std::unique_ptr<TokenShard> counting_shard(int32_t first, int64_t count, const std::string& name = "shard") {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return memory_shard(std::move(tokens), name);
}

template <class... Shard>
Dataset dataset_of(int64_t context, Shard... shards) {
  std::vector<std::unique_ptr<TokenShard>> all;
  (all.push_back(std::move(shards)), ...);
  return Dataset(std::move(all), context);
}

// Inputs of a sample; the targets are checked to be one token later.
std::vector<int32_t> sample(const Dataset& dataset, int64_t index, int64_t phase = 0) {
  std::vector<int32_t> inputs(dataset.context());
  std::vector<int32_t> targets(dataset.context());
  dataset.read_sample(index, inputs, targets, phase);
  for (size_t t = 0; t < inputs.size(); ++t)
    EXPECT_EQ(targets[t], inputs[t] + 1);
  return inputs;
}

TEST(Dataset, WindowsDoNotCrossShards) {
  // 9 tokens: (9 - 1) / 4 = 2 samples; 8 tokens: 1; 4 tokens: none; 5 tokens: 1.
  const Dataset dataset = dataset_of(4, counting_shard(0, 9), counting_shard(100, 8), counting_shard(200, 4),
                                     counting_shard(300, 5));
  EXPECT_EQ(dataset.samples(), 4);
  EXPECT_EQ(dataset.tokens(), 26);
  EXPECT_EQ(dataset.context(), 4);
  EXPECT_EQ(sample(dataset, 0), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(sample(dataset, 1), (std::vector<int32_t>{4, 5, 6, 7}));
  EXPECT_EQ(sample(dataset, 2), (std::vector<int32_t>{100, 101, 102, 103}));
  EXPECT_EQ(sample(dataset, 3), (std::vector<int32_t>{300, 301, 302, 303}));
}

TEST(Dataset, PhaseMovesTheWindowsAndStaysInside) {
  const Dataset dataset = dataset_of(4, counting_shard(0, 10), counting_shard(100, 5));
  EXPECT_EQ(sample(dataset, 0, 3), (std::vector<int32_t>{3, 4, 5, 6}));
  EXPECT_EQ(sample(dataset, 1, 1), (std::vector<int32_t>{5, 6, 7, 8}));  // the last that has a target
  EXPECT_EQ(sample(dataset, 1, 3), (std::vector<int32_t>{5, 6, 7, 8}));
  EXPECT_EQ(sample(dataset, 2, 3), (std::vector<int32_t>{100, 101, 102, 103}));
}

TEST(Dataset, TooLittleDataGivesTheArithmetic) {
  const std::string one = error_of([] { dataset_of(64, counting_shard(0, 64, "tiny.bin")); });
  expect_contains(one, "tiny.bin: found 64 tokens, but a sample needs context + 1 = 65");
  const std::string two = error_of([] { dataset_of(64, counting_shard(0, 64), counting_shard(0, 64)); });
  expect_contains(two, "found 128 tokens");
  expect_contains(two, "of one shard");
  EXPECT_EQ(dataset_of(64, counting_shard(0, 65)).samples(), 1);
}

TEST(Dataset, SliceIsAPartUnderTheSameName) {
  const std::shared_ptr<const TokenShard> whole = counting_shard(0, 100, "whole");
  const auto slice = slice_shard(whole, 10, 13);
  std::vector<int32_t> tokens(3);
  slice->read(0, tokens);
  EXPECT_EQ(slice->size(), 3);
  EXPECT_EQ(slice->name(), "whole");
  EXPECT_EQ(tokens, (std::vector<int32_t>{10, 11, 12}));
}

TEST(Dataset, FingerprintSeesNamesSizesAndEnds) {
  const auto fingerprint = [](int64_t count, size_t changed, const std::string& name) {
    std::vector<int32_t> tokens(count, 1);
    if (changed < tokens.size()) tokens[changed] = 2;
    return dataset_of(4, memory_shard(std::move(tokens), name)).fingerprint();
  };
  const size_t none = SIZE_MAX;
  const std::string reference = fingerprint(50000, none, "data/a.bin");
  EXPECT_EQ(fingerprint(50000, none, "data/a.bin"), reference);
  EXPECT_EQ(fingerprint(50000, none, "elsewhere/a.bin"), reference);  // a moved corpus is the same corpus
  EXPECT_NE(fingerprint(50000, none, "data/b.bin"), reference);
  EXPECT_NE(fingerprint(50001, none, "data/a.bin"), reference);
  EXPECT_NE(fingerprint(50000, 0, "data/a.bin"), reference);
  EXPECT_NE(fingerprint(50000, 16383, "data/a.bin"), reference);
  EXPECT_NE(fingerprint(50000, 50000 - 16384, "data/a.bin"), reference);
  EXPECT_NE(fingerprint(50000, 49999, "data/a.bin"), reference);
  EXPECT_NE(fingerprint(10, 9, "data/a.bin"), fingerprint(10, none, "data/a.bin"));
}

TEST(Dataset, DescriptionHasNamesAndSizes) {
  EXPECT_EQ(dataset_of(4, counting_shard(0, 1234, "data/x.bin")).description(), "data/x.bin (1,234 tokens)");
  EXPECT_EQ(dataset_of(4, counting_shard(0, 1000), counting_shard(0, 500)).description(),
            "2 shards, 1,500 tokens");
}

}  // namespace
}  // namespace hearth
