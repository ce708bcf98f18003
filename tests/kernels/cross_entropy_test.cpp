// kernels/cross_entropy.cu against the reference: shards, padding, ignored targets, extreme logits.
#include "kernels/cross_entropy.h"

#include "kernels/rows_test_support.h"

namespace hearth::testing {
namespace {

class CrossEntropy : public ScheduledTest {};
INSTANTIATE_TEST_SUITE_P(, CrossEntropy, every_schedule(), schedule_name);

constexpr float infinity = std::numeric_limits<float>::infinity();

// Every fifth target is ignored; others are anywhere in [0, vocabulary).
RowOperand<int32_t> random_targets(int64_t n, int64_t vocabulary, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> targets(static_cast<size_t>(n));
  for (int64_t r = 0; r < n; ++r)
    targets[static_cast<size_t>(r)] =
        r % 5 == 3 ? -1 : static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary));
  return RowOperand<int32_t>(targets, 1, n);
}

struct Statistics {
  explicit Statistics(int64_t rows) : all(3, rows) {}
  kernels::CrossEntropyStatistics view() const {
    return {all.data(), all.data() + all.columns, all.data() + 2 * all.columns};
  }
  RowOperand<float> all;
};

void test_whole(const RowOperand<bf16>& logits, const RowOperand<int32_t>& targets, const VocabShard& shard,
                bool in_place, bool with_gradient = true) {
  const int64_t N = logits.rows, V = logits.columns;
  const Step step({.loss_scale = 1.0 / 300});
  const Statistics stats(N);
  const RowOperand<float> losses(1, N);
  const RowOperand<bf16> own(N, V, logits.stride);
  const RowOperand<bf16>& dlogits = in_place ? logits : own;
  kernels::cross_entropy_statistics(logits.input(), targets.data(), shard, stats.view(), N, V, nullptr);
  kernels::cross_entropy_finish(logits.input(), targets.data(), shard, stats.view(), losses.data(),
                                with_gradient ? dlogits.view() : kernels::Rows<bf16>(), step.data(), N, V,
                                nullptr);
  Ops& ops = reference().ops();
  ops.cross_entropy_statistics(logits.tensor(), targets.vector(), shard, stats.all.tensor());
  ops.cross_entropy_finish(logits.tensor(), targets.vector(), shard, stats.all.tensor(), losses.vector(),
                           with_gradient ? dlogits.tensor() : Tensor());
  expect_near(stats.all, fp32_same, "statistics");
  expect_near(losses, fp32_same, "losses");
  expect_near(dlogits, bf16_same, "dlogits");
}

TEST_P(CrossEntropy, Whole) {
  for (const auto& [V, valid] : {std::pair<int64_t, int64_t>{8, 1}, {64, 61}, {264, 264}, {1032, 1001}}) {
    const auto logits = random_operand<bf16>(7, V, V + 8, 1, 3);
    test_whole(logits, random_targets(7, valid, 2), {0, valid}, false);
    test_whole(logits, random_targets(7, valid, 2), {0, valid}, false, false);
    test_whole(random_operand<bf16>(7, V, V, 3, 3), random_targets(7, valid, 4), {0, valid}, true);
  }
}

// Padding holds anything, NaN for instance.
TEST_P(CrossEntropy, PaddingIsNotRead) {
  auto logits = random_operand<bf16>(3, 48, 48, 1);
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t v = 43; v < 48; ++v)
      logits.host[static_cast<size_t>(r * 48 + v)] = bf16(v % 2 ? NAN : infinity);
  logits.device.set(logits.host);
  test_whole(logits, random_targets(3, 43, 2), {0, 43}, false);
}

// Two shards, one of which may be empty: combined they are the whole.
void test_shards(int64_t first_columns, int64_t first_valid, int64_t second_valid) {
  const int64_t N = 9, second_columns = 104;
  const int64_t vocabulary = first_valid + second_valid;
  const auto targets = random_targets(N, vocabulary, 5);
  const auto a = random_operand<bf16>(N, first_columns, first_columns, 6, 4);
  const auto b = random_operand<bf16>(N, second_columns, second_columns, 7, 4);
  const Step step({.loss_scale = 0.25});
  const VocabShard shards[] = {{0, first_valid}, {first_valid, second_valid}};
  const RowOperand<bf16>* logits[] = {&a, &b};
  const Statistics stats_a(N), stats_b(N);
  const Statistics* stats[] = {&stats_a, &stats_b};
  std::vector<float> maxima(static_cast<size_t>(N), -infinity);
  for (int i = 0; i < 2; ++i) {
    kernels::cross_entropy_statistics(logits[i]->input(), targets.data(), shards[i], stats[i]->view(), N,
                                      logits[i]->columns, nullptr);
    const auto values = stats[i]->all.device.to_host();
    for (int64_t r = 0; r < N; ++r)
      maxima[static_cast<size_t>(r)] =
          std::max(maxima[static_cast<size_t>(r)], values[static_cast<size_t>(r)]);
  }
  const DeviceArray<float> global_max(maxima);
  std::vector<float> combined(static_cast<size_t>(3 * N), 0.0f);
  for (int i = 0; i < 2; ++i) {
    kernels::cross_entropy_rescale(stats[i]->view(), global_max.data(), N, nullptr);
    const auto values = stats[i]->all.device.to_host();
    for (int64_t r = 0; r < N; ++r) {
      combined[static_cast<size_t>(r)] = values[static_cast<size_t>(r)];
      for (int64_t row = 1; row < 3; ++row)
        combined[static_cast<size_t>(row * N + r)] += values[static_cast<size_t>(row * N + r)];
    }
  }
  // In fp64 from the joined row.
  for (int i = 0; i < 2; ++i) {
    stats[i]->all.device.to_host();
    const RowOperand<float> sums(combined, 3, N);
    const RowOperand<float> losses(1, N);
    const RowOperand<bf16> dlogits(N, logits[i]->columns);
    kernels::cross_entropy_finish(logits[i]->input(), targets.data(), shards[i],
                                  {sums.data(), sums.data() + N, sums.data() + 2 * N}, losses.data(),
                                  dlogits.view(), step.data(), N, logits[i]->columns, nullptr);
    const auto loss = losses.device.to_host();
    const auto gradient = dlogits.device.to_host();
    for (int64_t r = 0; r < N; ++r) {
      const auto x = [&](int which, int64_t v) {
        return static_cast<double>(
            static_cast<float>(logits[which]->host[static_cast<size_t>(r * logits[which]->columns + v)]));
      };
      const int32_t target = targets.host[static_cast<size_t>(r)];
      double sum = 0;
      for (int which = 0; which < 2; ++which)
        for (int64_t v = 0; v < shards[which].valid; ++v)
          sum += std::exp(x(which, v));
      const double of_target = target < 0             ? 0
                               : target < first_valid ? x(0, target)
                                                      : x(1, target - first_valid);
      EXPECT_NEAR(loss[static_cast<size_t>(r)], target < 0 ? 0 : std::log(sum) - of_target, 1e-5);
      for (int64_t v = 0; v < logits[i]->columns; ++v) {
        const bool counts = target >= 0 && v < shards[i].valid;
        const double p = counts ? std::exp(x(i, v)) / sum : 0;
        const double expected = (p - (counts && v + shards[i].start == target)) * 0.25;
        ASSERT_NEAR(static_cast<float>(gradient[static_cast<size_t>(r * logits[i]->columns + v)]), expected,
                    std::abs(expected) * 4e-3 + 1e-7)
            << "shard " << i << " row " << r << " column " << v;
      }
    }
  }
}
TEST_P(CrossEntropy, Shards) {
  test_shards(64, 64, 99);
  test_shards(56, 50, 1);
  test_shards(64, 61, 0);  // the second shard is all padding
}

// A spread of 180 in the exponent; a target whose probability rounds to 1; whole vectors of -inf.
TEST_P(CrossEntropy, ExtremeLogits) {
  auto logits = random_operand<bf16>(5, 520, 520, 8, 90);
  for (int64_t v = 0; v < 520; ++v) {
    logits.host[static_cast<size_t>(v)] = bf16(v == 100 ? 0.0f : -12.0f);  // p = 0.997
    logits.host[static_cast<size_t>(520 + v)] = bf16(v == 100 ? 90.0f : -90.0f);
    if (v != 100 && v != 413) logits.host[static_cast<size_t>(1040 + v)] = bf16(-infinity);
  }
  logits.device.set(logits.host);
  const RowOperand<int32_t> targets(std::vector<int32_t>{100, 100, 413, 7, 519}, 1, 5);
  test_whole(logits, targets, {0, 520}, true);
}

TEST(CrossEntropyOnce, Gpt2Vocabulary) {
  const auto logits = random_operand<bf16>(6, 50304, 50304, 9, 2);
  test_whole(logits, random_targets(6, 50257, 10), {0, 50257}, true);
}

}  // namespace
}  // namespace hearth::testing
