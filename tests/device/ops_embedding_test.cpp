// Embeddings of every implementation against the reference.
#include "support/op_test.h"

namespace hearth::testing {
namespace {

struct Size {
  int64_t B, T, C;
};
const std::vector<Size> all_sizes = {{1, 1, 8},    {2, 31, 64}, {1, 63, 100}, {4, 16, 48},
                                     {1, 257, 64}, {3, 2, 768}, {1, 5, 1600}, {1, 3, 1280}};

class EmbeddingOps : public OpTest {
 protected:
  EmbeddingOps() {
    for (const Size& z : all_sizes)
      sizes.push_back({z.B, z.T, width(z.C)});
  }
  std::vector<Size> sizes;
};

Dropout dropout(double probability, int64_t time) {
  Dropout d;
  d.probability = probability;
  d.seed = 99;
  d.site = DropoutSite::embedding;
  d.sample_offset = 2;
  d.time = time;
  return d;
}

constexpr StepParams step{.first_sample = 11};

// The shard of the vocabulary that the table holds: rows for tokens outside of it are 0.
struct Shard {
  int64_t start, rows;
};
const std::vector<Shard> shards = {{0, 128}, {0, 32}, {32, 33}, {64, 64}};

TEST_P(EmbeddingOps, Tokens) {
  for (const auto& [B, T, C] : sizes) {
    for (const Shard& shard : shards) {
      const int64_t N = B * T, gap = C % 3 ? 8 : 0;
      Bench b = bench("embed_tokens N=", N, " C=", C, " start ", shard.start);
      const Operand tokens = b.input("tokens", Kind::i32, {N}, integers(0, 65));
      const Operand table = b.input("table", Kind::compute, {shard.rows, C}, normal());
      const Operand out = b.output("out", Kind::compute, {N, C}, same_bits(), C + gap);
      b.run([&](Ops& ops, size_t s) { ops.embed_tokens(tokens[s], table[s], shard.start, out[s]); });
    }
  }
}

// Repeated tokens add up in the order of the rows, so every implementation has the same bits.
TEST_P(EmbeddingOps, TokensBackward) {
  for (const auto& [B, T, C] : sizes) {
    for (const Shard& shard : shards) {
      const int64_t N = B * T, gap = C % 3 ? 8 : 0;
      for (const int64_t vocabulary : {3, 65}) {
        Bench b = bench("embed_tokens_backward N=", N, " C=", C, " start ", shard.start, " V=", vocabulary);
        const Operand tokens = b.input("tokens", Kind::i32, {N}, integers(0, vocabulary));
        const Operand d = b.input("d", Kind::compute, {N, C}, normal(), C + gap);
        const Operand dtable = b.inout("dtable", Kind::master, {shard.rows, C}, normal(), same_bits());
        b.run(
            [&](Ops& ops, size_t s) { ops.embed_tokens_backward(tokens[s], d[s], shard.start, dtable[s]); });
      }
    }
  }
}

TEST_P(EmbeddingOps, WholeVocabulary) {
  Bench b = bench("embed_tokens V=50304");
  const Operand tokens = b.input("tokens", Kind::i32, {4}, listed({50256, 0, 50256, 50303}));
  const Operand table = b.input("table", Kind::compute, {50304, 8}, normal());
  const Operand out = b.output("out", Kind::compute, {4, 8}, same_bits());
  const Operand d = b.input("d", Kind::compute, {4, 8}, normal());
  const Operand dtable = b.inout("dtable", Kind::master, {50304, 8}, constant(0), same_bits());
  b.run([&](Ops& ops, size_t s) {
    ops.embed_tokens(tokens[s], table[s], 0, out[s]);
    ops.embed_tokens_backward(tokens[s], d[s], 0, dtable[s]);
  });
}

// Positions of a sample need not start at 0: a shard of the sequence, or a token that is decoded.
Values positions(int64_t T, int64_t first) {
  return [=](int64_t r, uint64_t) { return static_cast<double>(first + r % T); };
}

TEST_P(EmbeddingOps, Positions) {
  for (const auto& [B, T, C] : sizes) {
    for (const double probability : {0.0, 0.1, 0.5}) {
      for (const bool has_table : {true, false}) {
        const int64_t N = B * T, first = probability > 0.3 ? 4 : 0, gap = C % 3 ? 8 : 0;
        Bench b = bench("embed_positions N=", N, " C=", C, " p=", probability, " table ", has_table);
        b.step(step);
        const Operand x = b.inout("x", Kind::compute, {N, C}, normal(), after_dropout(probability), C + gap);
        const Operand index = b.input("positions", Kind::i32, {N}, positions(T, first));
        const Operand table =
            has_table ? b.input("table", Kind::compute, {T + first, C}, normal()) : Operand();
        Dropout d = dropout(probability, T);
        d.first_row = first;
        b.run([&](Ops& ops, size_t s) { ops.embed_positions(x[s], index[s], table[s], d); });
      }
    }
  }
}

TEST_P(EmbeddingOps, PositionsBackward) {
  for (const auto& [B, T, C] : sizes) {
    for (const double probability : {0.0, 0.1, 0.5}) {
      for (const bool has_table : {true, false}) {
        const int64_t N = B * T, first = probability > 0.3 ? 4 : 0, gap = C % 3 ? 8 : 0;
        Bench b = bench("embed_positions_backward N=", N, " C=", C, " p=", probability, " table ", has_table);
        b.step(step);
        const Operand d = b.inout("d", Kind::compute, {N, C}, normal(), after_dropout(probability), C + gap);
        const std::vector<double> before = b.values(d);
        const Operand index = b.input("positions", Kind::i32, {N}, positions(T, first));
        // Sums of masked values that were rounded, in order.
        const Operand dtable =
            has_table ? b.inout("dtable", Kind::master, {T + first + 3, C}, normal(), after_rounding())
                      : Operand();
        Dropout mask = dropout(probability, T);
        mask.first_row = first;
        b.run([&](Ops& ops, size_t s) { ops.embed_positions_backward(d[s], index[s], mask, dtable[s]); });
        if (probability == 0) {
          EXPECT_EQ(b.values(d), before);
        }
      }
    }
  }
}

// The mask of the backward pass is that of the forward pass.
TEST_P(EmbeddingOps, MasksAgree) {
  const int64_t N = 6 * 32, C = 48;
  Bench b = bench("embedding dropout");
  b.step(step);
  const Operand x = b.inout("x", Kind::compute, {N, C}, constant(1), same_bits());
  const Operand d = b.inout("d", Kind::compute, {N, C}, constant(1), same_bits());
  const Operand index = b.input("positions", Kind::i32, {N}, positions(32, 0));
  b.run([&](Ops& ops, size_t s) {
    ops.embed_positions(x[s], index[s], {}, dropout(0.2, 32));
    ops.embed_positions_backward(d[s], index[s], dropout(0.2, 32), {});
  });
  const std::vector<double> mask = b.values(x);
  EXPECT_EQ(mask, b.values(d));
  const auto dropped = static_cast<double>(std::count(mask.begin(), mask.end(), 0.0));
  EXPECT_NEAR(dropped / (N * C), 0.2, 4 * std::sqrt(0.2 * 0.8 / (N * C)));
}

INSTANTIATE_TEST_SUITE_P(Ops, EmbeddingOps, ::testing::ValuesIn(setups()), setup_name);

}  // namespace
}  // namespace hearth::testing
