// The order of the data: a bijection for every epoch, a pure function of (seed, k),
// the same however it is read.
#include "data/loader.h"

#include <cmath>
#include <numeric>
#include <set>
#include <thread>

#include "data/data_test_support.h"

namespace hearth {
namespace {

Dataset counting_dataset(int64_t tokens, int64_t context) {
  std::vector<int32_t> ids(tokens);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<std::unique_ptr<TokenShard>> shards;
  shards.push_back(memory_shard(std::move(ids), "counting"));
  return Dataset(std::move(shards), context);
}

std::vector<int64_t> order(int64_t size, uint64_t seed, uint64_t epoch) {
  const Permutation permutation(size, seed, epoch);
  std::vector<int64_t> values(size);
  for (int64_t i = 0; i < size; ++i)
    values[i] = permutation(i);
  return values;
}

TEST(Permutation, IsABijectionForEverySize) {
  for (int64_t size = 1; size < 300; ++size)
    for (const uint64_t epoch : {0, 1}) {
      const std::vector<int64_t> values = order(size, 42, epoch);
      const std::set<int64_t> distinct(values.begin(), values.end());
      ASSERT_EQ(std::ssize(distinct), size);
      ASSERT_EQ(*distinct.begin(), 0);
      ASSERT_EQ(*distinct.rbegin(), size - 1);
    }
}

TEST(Permutation, HandlesHugeSizes) {
  const int64_t size = (int64_t{1} << 61) + 12345;
  const Permutation permutation(size, 7, 3);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t value = permutation(size - 1 - i);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, size);
    seen.insert(value);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(Permutation, SeedAndEpochChangeIt) {
  EXPECT_EQ(order(1000, 1, 0), order(1000, 1, 0));
  EXPECT_NE(order(1000, 1, 0), order(1000, 2, 0));
  EXPECT_NE(order(1000, 1, 0), order(1000, 1, 1));
}

// Over many seeds every element comes to every place about equally often (chi-squared, 99.99% bound), and
// neighbours stay neighbours no more often than by chance.
TEST(Permutation, LooksRandom) {
  constexpr int size = 37;
  constexpr int trials = 4000;
  std::vector<int> counts(size * size);
  int neighbours = 0;
  for (int seed = 0; seed < trials; ++seed) {
    const std::vector<int64_t> values = order(size, static_cast<uint64_t>(seed), 5);
    for (int i = 0; i < size; ++i)
      ++counts[i * size + values[i]];
    for (int i = 0; i + 1 < size; ++i)
      neighbours += values[i + 1] == values[i] + 1;
  }
  const double expected = static_cast<double>(trials) / size;
  double chi_squared = 0;
  for (const int count : counts)
    chi_squared += (count - expected) * (count - expected) / expected;
  const double freedom = (size - 1) * (size - 1);
  EXPECT_LT(chi_squared, freedom + 4 * std::sqrt(2 * freedom));
  const double expected_neighbours = trials * (size - 1.0) / size;
  EXPECT_NEAR(neighbours, expected_neighbours, 5 * std::sqrt(expected_neighbours));
}

TEST(Loader, EveryEpochVisitsEverySampleOnce) {
  const Dataset dataset = counting_dataset(41, 4);
  ASSERT_EQ(dataset.samples(), 10);
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    std::set<int64_t> seen;
    std::set<int64_t> phases;
    for (int64_t k = 0; k < 10; ++k) {
      const SamplePlace place = sample_at(dataset, 1, epoch * 10 + k);
      seen.insert(place.index);
      phases.insert(place.phase);
    }
    EXPECT_EQ(seen.size(), 10u);
    EXPECT_EQ(phases.size(), 1u);
    EXPECT_TRUE(epoch > 0 || *phases.begin() == 0);
    EXPECT_LT(*phases.rbegin(), 4);
  }
}

TEST(Loader, LaterEpochsCutTheTextElsewhere) {
  const Dataset dataset = counting_dataset(64 * 10 + 1, 64);
  std::set<int64_t> phases;
  for (int64_t epoch = 0; epoch < 20; ++epoch)
    phases.insert(sample_at(dataset, 1, epoch * 10).phase);
  EXPECT_GT(phases.size(), 10u);
}

// The order is part of what a checkpoint means: this must never change.
TEST(Loader, OrderIsFrozen) {
  EXPECT_EQ(order(10, 1337, 0), (std::vector<int64_t>{9, 5, 0, 4, 6, 7, 8, 2, 3, 1}));
  EXPECT_EQ(order(10, 1337, 1), (std::vector<int64_t>{6, 5, 0, 2, 9, 8, 3, 1, 4, 7}));
  const Dataset dataset = counting_dataset(64 * 10 + 1, 64);
  EXPECT_EQ(sample_at(dataset, 1337, 10).phase, 62);
}

bool equal(const HostBatch& a, const HostBatch& b) {
  return a.first_sample == b.first_sample && a.rows == b.rows && a.tokens == b.tokens &&
         a.targets == b.targets;
}

TEST(Loader, GivesTheBatchesInOrder) {
  const Dataset dataset = counting_dataset(1001, 8);
  for (const int ahead : {1, 4}) {
    Loader loader(dataset, 3, 5, 20, 5, ahead);
    for (int64_t j = 0; j < 100; ++j)
      ASSERT_TRUE(equal(loader.next(), read_batch(dataset, 3, 20 + 5 * j, 5)));
  }
}

TEST(Loader, RowsAreTheSamplesOfTheRun) {
  const Dataset dataset = counting_dataset(1001, 8);
  const HostBatch batch = read_batch(dataset, 3, 250, 4);  // the third epoch
  EXPECT_EQ(batch.first_sample, 250);
  for (int64_t r = 0; r < 4; ++r) {
    const SamplePlace place = sample_at(dataset, 3, 250 + r);
    std::vector<int32_t> inputs(8);
    std::vector<int32_t> targets(8);
    dataset.read_sample(place.index, inputs, targets, place.phase);
    EXPECT_TRUE(std::equal(inputs.begin(), inputs.end(), batch.tokens.begin() + r * 8));
    EXPECT_TRUE(std::equal(targets.begin(), targets.end(), batch.targets.begin() + r * 8));
  }
}

TEST(Loader, RanksTogetherReadWhatOneReads) {
  const Dataset dataset = counting_dataset(1001, 8);
  Loader one(dataset, 3, 6, 0, 6);
  Loader even(dataset, 3, 3, 0, 6);
  Loader odd(dataset, 3, 3, 3, 6);
  for (int j = 0; j < 50; ++j) {
    HostBatch both = even.next();
    const HostBatch second = odd.next();
    both.tokens.insert(both.tokens.end(), second.tokens.begin(), second.tokens.end());
    ASSERT_EQ(one.next().tokens, both.tokens);
  }
}

// A shard whose reads fail after a while.
class FailingShard final : public TokenShard {
 public:
  int64_t size() const override { return 1000; }
  void read(int64_t begin, std::span<int32_t> out) const override {
    if (++reads_ > 40) fail_data("the disk is gone");
    std::iota(out.begin(), out.end(), static_cast<int32_t>(begin));
  }
  std::string name() const override { return "failing"; }

 private:
  mutable int reads_ = 0;
};

TEST(Loader, ErrorsOfTheReadingThreadArriveAtNext) {
  std::vector<std::unique_ptr<TokenShard>> shards;
  shards.push_back(std::make_unique<FailingShard>());
  Loader loader(Dataset(std::move(shards), 8), 1, 4, 0, 4);
  int batches = 0;
  const std::string sentence = error_of([&] {
    for (;; ++batches)
      loader.next();
  });
  expect_contains(sentence, "the disk is gone");
  EXPECT_EQ(batches, 5);  // 8 reads a batch
  expect_contains(error_of([&] { loader.next(); }), "the disk is gone");
}

TEST(Loader, CanBeLeftAtAnyTime) {
  const Dataset dataset = counting_dataset(1001, 8);
  for (int i = 0; i < 50; ++i) {
    Loader loader(dataset, 3, 4, 0, 4);
    if (i % 2) loader.next();
    if (i % 3) std::this_thread::yield();
  }
}

}  // namespace
}  // namespace hearth
