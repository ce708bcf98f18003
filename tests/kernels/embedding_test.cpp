// kernels/embedding.cu: gathers bit for bit, scatters bit for bit as sums in the order of r.
#include "kernels/embedding.h"

#include "kernels/rows_test_support.h"

namespace hearth::testing {
namespace {

class Embedding : public ScheduledTest {};
INSTANTIATE_TEST_SUITE_P(, Embedding, every_schedule(), schedule_name);

// Uniform in [from, to).
RowOperand<int32_t> random_indices(int64_t n, int64_t from, int64_t to, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int32_t> pick(static_cast<int32_t>(from), static_cast<int32_t>(to - 1));
  std::vector<int32_t> values(static_cast<size_t>(n));
  for (int32_t& value : values)
    value = pick(random);
  return RowOperand<int32_t>(values, 1, n);
}

void test_tokens(const RowOperand<int32_t>& tokens, int64_t V, int64_t C, int64_t start, int64_t gap) {
  const int64_t N = tokens.columns;
  const auto table = random_operand<bf16>(V, C, C + gap, 1);
  const RowOperand<bf16> out(N, C, C + gap);
  kernels::embed_tokens(tokens.data(), table.input(), start, V, out.view(), N, C, nullptr);
  reference().ops().embed_tokens(tokens.vector(), table.tensor(), start, out.tensor());
  expect_near(out, 0, "embedding");
}

// dtable[v] = dtable[v] + d[r] for r = 0, 1, ... in fp32.
void test_tokens_backward(const RowOperand<int32_t>& tokens, int64_t V, int64_t C, int64_t start, int64_t gap,
                          int64_t shift = 0) {
  const int64_t N = tokens.columns - shift;
  const auto d = random_operand<bf16>(N, C, C + gap, 2);
  const auto dtable = random_operand<float>(V, C, C + gap, 3);
  kernels::embed_tokens_backward(tokens.data() + shift, d.input(), start, dtable.view(), V, N, C, nullptr);
  std::vector<float> expected = dtable.host;
  for (int64_t r = 0; r < N; ++r) {
    const int64_t v = tokens.host[static_cast<size_t>(r + shift)] - start;
    if (v < 0 || v >= V) continue;
    for (int64_t c = 0; c < C; ++c)
      expected[static_cast<size_t>(v * (C + gap) + c)] +=
          static_cast<float>(d.host[static_cast<size_t>(r * (C + gap) + c)]);
  }
  const auto actual = dtable.device.to_host();
  for (int64_t v = 0; v < V; ++v)
    for (int64_t c = 0; c < C; ++c)
      ASSERT_EQ(actual[static_cast<size_t>(v * (C + gap) + c)],
                expected[static_cast<size_t>(v * (C + gap) + c)])
          << "row " << v << " column " << c << " of [" << V << ", " << C << "] after " << N << " tokens";
}

TEST_P(Embedding, Tokens) {
  test_tokens(random_indices(1, 0, 5, 1), 5, 8, 0, 0);
  test_tokens(random_indices(65, 0, 300, 2), 300, 768, 0, 8);
  test_tokens(random_indices(63, 0, 300, 3), 100, 264, 130, 0);  // a shard of the vocabulary
}

TEST_P(Embedding, TokensBackward) {
  test_tokens_backward(random_indices(1, 0, 5, 1), 5, 8, 0, 0);
  test_tokens_backward(random_indices(200, 0, 37, 2), 37, 264, 0, 8);
  test_tokens_backward(random_indices(301, 0, 300, 3), 100, 40, 130, 0);
  test_tokens_backward(random_indices(131, 0, 16, 4), 16, 768, 0, 0, 1);  // an unaligned list of tokens
}

TEST_P(Embedding, AllTokensEqual) {
  test_tokens_backward(random_indices(300, 7, 8, 1), 11, 72, 0, 0);
}

// Lists that overflow: several parts, each in order.
TEST(EmbeddingOnce, TokensBackwardLarge) {
  test_tokens_backward(random_indices(9001, 3, 4, 1), 11, 8, 0, 0);
  test_tokens_backward(random_indices(9001, 0, 3, 2), 3, 16, 0, 0);
  test_tokens_backward(random_indices(2048 * 3, 0, 1000, 3), 1000, 8, 0, 8);
}

// A vocabulary of GPT-2's size, where a block owns 50 rows.
TEST(EmbeddingOnce, TokensBackwardOfALargeVocabulary) {
  test_tokens_backward(random_indices(8200, 0, 50257, 4), 50304, 8, 0, 0);
}

Dropout dropout(double probability, int64_t time) {
  Dropout d;
  d.probability = probability;
  d.seed = 99;
  d.sample_offset = 2;
  d.time = time;
  d.first_row = 3;
  return d;
}

void test_positions(int64_t samples, int64_t T, int64_t C, double probability, bool with_table, int64_t gap) {
  const int64_t N = samples * T, table_rows = T + 9;
  const Step step({.first_sample = 40});
  const auto positions = random_indices(N, 0, table_rows, 5);
  const auto table = random_operand<bf16>(table_rows, C, C + gap, 6);
  const auto dtable = random_operand<float>(table_rows, C, C, 7);
  const auto x = random_operand<bf16>(N, C, C + gap, 8), d = random_operand<bf16>(N, C, C + gap, 9);
  const Dropout mask = dropout(probability, T);
  Ops& ops = reference().ops();
  kernels::embed_positions(x.view(), positions.data(),
                           with_table ? table.input() : kernels::Rows<const bf16>(), table_rows, N, C, mask,
                           step.data(), nullptr);
  ops.embed_positions(x.tensor(), positions.vector(), with_table ? table.tensor() : Tensor(), mask);
  expect_near(x, probability == 0 ? 0 : bf16_after_dropout, "x");
  kernels::embed_positions_backward(d.view(), positions.data(),
                                    with_table ? dtable.view() : kernels::Rows<float>(), table_rows, N, C,
                                    mask, step.data(), nullptr);
  ops.embed_positions_backward(d.tensor(), positions.vector(), mask, with_table ? dtable.tensor() : Tensor());
  expect_near(d, probability == 0 ? 0 : bf16_after_dropout, "d");
  expect_near(dtable, probability == 0 ? 0 : bf16_after_dropout, "dtable");
}

TEST_P(Embedding, Positions) {
  test_positions(2, 31, 72, 0, true, 8);
  test_positions(2, 31, 72, 0.1, true, 0);
  test_positions(3, 20, 264, 0.5, false, 8);
  test_positions(1, 1, 8, 0, false, 0);
}

}  // namespace
}  // namespace hearth::testing
