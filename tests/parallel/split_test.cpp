// Layers over stages, rows over ranks, gradients in buckets: every element is somewhere, once.
#include "parallel/split.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/error.h"
#include "parallel/buckets.h"

namespace hearth {
namespace {

TEST(LayerSplit, CoversTheLayersInOrderAndEvenly) {
  for (int64_t layers = 1; layers <= 50; ++layers)
    for (int parts = 1; parts <= layers; ++parts) {
      int64_t next = 0;
      int64_t previous = layers;
      for (int part = 0; part < parts; ++part) {
        const Range range = layers_of(layers, parts, part);
        ASSERT_EQ(range.begin, next);
        ASSERT_GE(range.count, layers / parts);
        ASSERT_LE(range.count, (layers + parts - 1) / parts);
        ASSERT_LE(range.count, previous);
        previous = range.count;
        next = range.end();
      }
      ASSERT_EQ(next, layers);
    }
}

TEST(LayerSplit, ChunksGoRoundTheStages) {
  EXPECT_EQ(layers_of(8, 2, 2, 0, 0), (Range{0, 2}));
  EXPECT_EQ(layers_of(8, 2, 2, 1, 0), (Range{2, 2}));
  EXPECT_EQ(layers_of(8, 2, 2, 0, 1), (Range{4, 2}));
  EXPECT_EQ(layers_of(8, 2, 2, 1, 1), (Range{6, 2}));
}

TEST(LayerSplit, MorePartsThanLayersIsRefused) {
  EXPECT_THROW(layers_of(3, 4, 0), Error);
}

TEST(RowSplit, CoversEveryRowOnceInEqualChunks) {
  for (int64_t rows = 0; rows <= 40; ++rows)
    for (int ranks = 1; ranks <= 17; ++ranks) {
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range range = rows_of(rows, ranks, rank);
        ASSERT_EQ(range.begin, next);
        ASSERT_LE(range.count, chunk_rows(rows, ranks));
        // Only what lies behind the last row is short.
        if (range.end() < rows) {
          ASSERT_EQ(range.count, chunk_rows(rows, ranks));
        }
        next = range.end();
      }
      ASSERT_EQ(next, rows);
    }
}

std::vector<BucketTensor> random_tensors(std::mt19937& random) {
  std::vector<BucketTensor> tensors(1 + random() % 30);
  for (BucketTensor& tensor : tensors)
    tensor = {static_cast<int64_t>(1 + random() % 40), static_cast<int64_t>(1 + random() % 9),
              random() % 10 == 0};
  return tensors;
}

// Every row of every tensor has one place in one bucket, no two share one,
// and each part has what its rank owns.
TEST(Buckets, EveryElementHasOnePlace) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const std::vector<BucketTensor> tensors = random_tensors(random);
    const int parts = 1 + static_cast<int>(random() % 9);
    const int64_t capacity = 1 + static_cast<int64_t>(random() % 2000);
    size_t next_tensor = 0;
    for (const Bucket& bucket : plan_buckets(tensors, parts, capacity)) {
      ASSERT_FALSE(bucket.entries.empty());
      if (bucket.entries.size() > 1) {
        ASSERT_LE(bucket.elements(), capacity);
      }
      std::vector<int> used(static_cast<size_t>(bucket.elements()));
      for (const Bucket::Entry& entry : bucket.entries) {
        ASSERT_EQ(entry.tensor, next_tensor++);  // in the given order: backward's
        if (tensors[entry.tensor].alone) {
          ASSERT_EQ(bucket.entries.size(), 1u);
        }
        int64_t rows = 0;
        for (int part = 0; part < parts; ++part) {
          const Range range = bucket.rows(entry, part);
          ASSERT_EQ(range, rows_of(tensors[entry.tensor].rows, parts, part));
          const int64_t begin = bucket.offset(entry, part);
          ASSERT_GE(begin, part * bucket.part_elements);
          ASSERT_LE(begin + range.count * entry.row_elements, (part + 1) * bucket.part_elements);
          for (int64_t i = 0; i < range.count * entry.row_elements; ++i)
            ASSERT_EQ(used[static_cast<size_t>(begin + i)]++, 0);
          rows += range.count;
        }
        ASSERT_EQ(rows, tensors[entry.tensor].rows);
      }
    }
    ASSERT_EQ(next_tensor, tensors.size());
  }
}

TEST(Buckets, FillUpToTheCapacity) {
  const std::vector<BucketTensor> tensors(10, BucketTensor{4, 25});
  const auto buckets = plan_buckets(tensors, 2, 300);
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].entries.size(), 3u);
  EXPECT_EQ(buckets[3].entries.size(), 1u);
  EXPECT_EQ(plan_buckets(tensors, 2, 1).size(), 10u);
  EXPECT_EQ(plan_buckets(tensors, 2, 1 << 20).size(), 1u);
}

// A model of 40 billion elements and a bucket of more than 2^31.
TEST(Buckets, OffsetsAre64Bit) {
  const std::vector<BucketTensor> tensors{{1 << 20, 4096}, {50304, 819200}};
  const auto buckets = plan_buckets(tensors, 3, int64_t{1} << 40);
  ASSERT_EQ(buckets.size(), 1u);
  const Bucket::Entry& last = buckets[0].entries[1];
  EXPECT_EQ(last.part_offset, int64_t{349526} * 4096);
  EXPECT_EQ(buckets[0].offset(last, 2),
            2 * (int64_t{349526} * 4096 + int64_t{16768} * 819200) + last.part_offset);
}

}  // namespace
}  // namespace hearth
