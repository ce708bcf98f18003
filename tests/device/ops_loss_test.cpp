// Cross-entropy of every implementation against the reference.
#include "support/op_test.h"

namespace hearth::testing {
namespace {

struct Size {
  int64_t N, V, valid;
};
const std::vector<Size> all_sizes = {{1, 128, 65}, {31, 128, 65}, {65, 97, 97},     {7, 128, 127},
                                     {2, 8, 1},    {257, 64, 33}, {3, 50304, 50257}};

class LossOps : public OpTest {
 protected:
  LossOps() {
    for (const Size& z : all_sizes)
      sizes.push_back({z.N, width(z.V), z.valid});
  }
  std::vector<Size> sizes;
};

constexpr StepParams step{.loss_scale = 1.0 / 37};

// Some rows are masked: target -1.  Row 0 has the last id, which is in the last shard of a split vocabulary.
Values targets(int64_t valid) {
  return [=](int64_t r, uint64_t seed) {
    if (r == 0) return static_cast<double>(valid - 1);
    return r % 5 == 3 ? -1.0 : integers(0, valid)(r, seed);
  };
}

// Columns of padding hold NaN, which must neither be read nor survive in the gradient.
Values logits(const Size& z, const Values& values) {
  return [=](int64_t i, uint64_t seed) { return i % z.V < z.valid ? values(i, seed) : std::nan(""); };
}

// Forward and gradient of one block of rows; in place when the gradient overwrites the logits.
void whole_loss(Bench& b, const Size& z, const Values& values, bool in_place, const Bounds& bounds) {
  b.step(step);
  const int64_t gap = in_place ? 0 : 8;
  const Operand x = in_place ? b.inout("logits", Kind::compute, {z.N, z.V}, logits(z, values), bounds)
                             : b.input("logits", Kind::compute, {z.N, z.V}, logits(z, values), z.V + gap);
  const Operand dlogits = in_place ? x : b.output("dlogits", Kind::compute, {z.N, z.V}, bounds, z.V + gap);
  const Operand target = b.input("targets", Kind::i32, {z.N}, targets(z.valid));
  // Fifty thousand terms are a long sum for f32, on four lanes above all.
  const Bounds sums{.f32 = z.V > 10000 ? 1e-5 : 2e-6};
  const Operand stats = b.output("stats", Kind::master, {3, z.N}, sums);
  const Operand losses = b.output("losses", Kind::master, {z.N}, Bounds{.f32 = bounds.f32});
  const VocabShard shard{0, z.valid};
  b.run([&](Ops& ops, size_t s) {
    ops.cross_entropy_statistics(x[s], target[s], shard, stats[s]);
    ops.cross_entropy_finish(x[s], target[s], shard, stats[s], losses[s], dlogits[s]);
  });
  b.expect_close("sums", stats.rows(1, 1), Kind::master, sums);

  const std::vector<double> id = b.values(target), loss = b.values(losses), d = b.values(dlogits);
  for (int64_t r = 0; r < z.N; ++r) {
    const bool masked = id[r] < 0;
    EXPECT_TRUE(!masked || loss[r] == 0) << "row " << r << " is masked";
    for (int64_t v = masked ? 0 : z.valid; v < z.V; ++v)
      ASSERT_EQ(d[r * z.V + v], 0) << "row " << r << " column " << v;
  }
}

TEST_P(LossOps, LossAndGradient) {
  for (const Size& z : sizes) {
    for (const bool in_place : {false, true}) {
      Bench b = bench("cross_entropy N=", z.N, " V=", z.V, " valid ", z.valid, " in place ", in_place);
      whole_loss(b, z, normal(3), in_place, Bounds{.f32 = 4e-6});
    }
  }
}

TEST_P(LossOps, HardLogits) {
  const Size z{9, 128, 65};
  const std::vector<Values> hard = {
      constant(0), constant(-1e4),
      [](int64_t i, uint64_t seed) { return normal()(i, seed) > 0 ? 1e4 : -1e4; },  // ties at the top
      normal(1e4), [](int64_t i, uint64_t) { return i % 7 ? 0 : 80.0; }};
  for (size_t i = 0; i < hard.size(); ++i) {
    Bench b = bench("cross_entropy of hard logits ", i);
    whole_loss(b, z, hard[i], i % 2, Bounds{.f32 = 4e-6});
  }
}

TEST_P(LossOps, LossOnly) {
  const Size z{31, 128, 65};
  Bench b = bench("cross_entropy without gradient");
  const Operand x = b.input("logits", Kind::compute, {z.N, z.V}, logits(z, normal()));
  const Operand target = b.input("targets", Kind::i32, {z.N}, targets(z.valid));
  const Operand stats = b.output("stats", Kind::master, {3, z.N});
  const Operand losses = b.output("losses", Kind::master, {z.N});
  b.run([&](Ops& ops, size_t s) {
    ops.cross_entropy_statistics(x[s], target[s], {0, z.valid}, stats[s]);
    ops.cross_entropy_finish(x[s], target[s], {0, z.valid}, stats[s], losses[s], {});
  });
}

// Three shards of a vocabulary, the last of them mostly padding, combine to what one device computes.
TEST_P(LossOps, ShardsCombine) {
  const int64_t N = 31, V = 192, valid = 130, shards = 3, width = V / shards;
  for (const double scale : {2.0, 1e3}) {
    Bench b = bench("cross_entropy in shards, scale ", scale);
    b.step(step);
    const Operand x = b.input("logits", Kind::compute, {N, V}, logits({N, V, valid}, normal(scale)));
    const Operand target = b.input("targets", Kind::i32, {N}, targets(valid));
    const Operand whole_stats = b.output("whole stats", Kind::master, {3, N});
    const Operand whole_losses = b.output("whole losses", Kind::master, {N});
    const Operand whole_gradient = b.output("whole gradient", Kind::compute, {N, V}, Bounds{.f32 = 4e-6});
    b.run([&](Ops& ops, size_t s) {
      ops.cross_entropy_statistics(x[s], target[s], {0, valid}, whole_stats[s]);
      ops.cross_entropy_finish(x[s], target[s], {0, valid}, whole_stats[s], whole_losses[s],
                               whole_gradient[s]);
    });

    // What the collectives do between the halves: MAX of the maxima, SUM of the sums and target logits.
    std::vector<Operand> parts;
    for (int64_t k = 0; k < shards; ++k)
      parts.push_back(b.output(text("stats of shard ", k), Kind::master, {3, N}));
    const auto shard = [&](int64_t k) {
      return VocabShard{k * width, std::clamp<int64_t>(valid - k * width, 0, width)};
    };
    b.run([&](Ops& ops, size_t s) {
      for (int64_t k = 0; k < shards; ++k)
        ops.cross_entropy_statistics(x[s].slice(1, k * width, width), target[s], shard(k), parts[k][s]);
    });
    std::vector<double> largest = b.values(parts[0].rows(0, 1));
    for (const Operand& part : parts)
      for (int64_t n = 0; n < N; ++n)
        largest[n] = std::max(largest[n], b.values(part)[n]);
    const Operand global_max = b.input("global_max", Kind::master, {N}, listed(largest));
    b.run([&](Ops& ops, size_t s) {
      for (const Operand& part : parts)
        ops.cross_entropy_rescale(part[s], global_max[s]);
    });
    std::vector<double> total(3 * N);
    for (int64_t n = 0; n < N; ++n) {
      total[n] = largest[n];
      for (const Operand& part : parts) {
        EXPECT_EQ(b.values(part)[n], largest[n]);
        for (int64_t row = 1; row < 3; ++row)
          total[row * N + n] += b.values(part)[row * N + n];
      }
    }
    const Operand stats = b.input("combined stats", Kind::master, {3, N}, listed(total));
    const Operand losses = b.output("losses", Kind::master, {N});
    const Operand gradient = b.output("gradient", Kind::compute, {N, V}, Bounds{.f32 = 4e-6});
    b.run([&](Ops& ops, size_t s) {
      for (int64_t k = 0; k < shards; ++k)
        ops.cross_entropy_finish(x[s].slice(1, k * width, width), target[s], shard(k), stats[s], losses[s],
                                 gradient[s].slice(1, k * width, width));
    });
    const std::vector<double> expected = b.values(whole_losses), combined = b.values(losses);
    for (int64_t n = 0; n < N; ++n)
      EXPECT_NEAR(combined[n], expected[n], 1e-5 * std::abs(expected[n]) + 1e-6) << "row " << n;
  }
}

// A shard that is all padding contributes nothing.
TEST_P(LossOps, EmptyShard) {
  Bench b = bench("cross_entropy of padding only");
  const Operand x = b.input("logits", Kind::compute, {3, 64}, constant(std::nan("")));
  const Operand target = b.input("targets", Kind::i32, {3}, listed({0, 5, -1}));
  const Operand stats = b.output("stats", Kind::master, {3, 3});
  const Operand global_max = b.input("global_max", Kind::master, {3}, listed({1, -2, 0}));
  b.run([&](Ops& ops, size_t s) {
    ops.cross_entropy_statistics(x[s], target[s], {64, 0}, stats[s]);
    ops.cross_entropy_rescale(stats[s], global_max[s]);
  });
  EXPECT_EQ(b.values(stats.rows(1, 2)), std::vector<double>(6, 0));
}

INSTANTIATE_TEST_SUITE_P(Ops, LossOps, ::testing::ValuesIn(setups()), setup_name);

}  // namespace
}  // namespace hearth::testing
