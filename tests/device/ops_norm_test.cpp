// The residual stream and layernorm of every implementation against the reference.
#include "base/philox.h"
#include "support/op_test.h"

namespace hearth::testing {
namespace {

struct Size {
  int64_t B, T, C;
};
const std::vector<Size> all_sizes = {{1, 1, 8},   {1, 2, 48},   {2, 31, 64},  {1, 63, 100},
                                     {4, 16, 8},  {1, 3, 1280}, {1, 65, 48},  {2, 64, 64},
                                     {3, 2, 768}, {1, 5, 1600}, {1, 257, 100}};

class NormOps : public OpTest {
 protected:
  NormOps() {
    for (const Size& z : all_sizes)
      sizes.push_back({z.B, z.T, width(z.C)});
  }
  std::vector<Size> sizes;
};

Dropout dropout(double probability, int64_t time) {
  Dropout d;
  d.probability = probability;
  d.seed = 1234;
  d.layer = 3;
  d.site = DropoutSite::mlp;
  d.sample_offset = 5;
  d.time = time;
  return d;
}

constexpr StepParams step{.first_sample = 70};

TEST_P(NormOps, Forward) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto [B, T, C] = sizes[i];
    const int64_t N = B * T;
    for (int variant = 0; variant < 5; ++variant) {
      const double probability = variant == 1 ? 0.1 : variant == 2 ? 0.5 : 0;
      const bool in_place = variant == 3;
      const int64_t gap = (i + variant) % 2 * 8;
      const bool branch_biased = variant != 4, norm_biased = (i + variant) % 2;
      Bench b = bench("residual_norm_forward N=", N, " C=", C, " variant ", variant);
      b.step(step);
      const Operand residual_in =
          in_place ? Operand() : b.input("residual", Kind::compute, {N, C}, normal(), C + gap);
      const Operand residual_out =
          in_place
              ? b.inout("residual_out", Kind::compute, {N, C}, normal(), after_dropout(probability), C + gap)
              : b.output("residual_out", Kind::compute, {N, C}, after_dropout(probability), C + gap);
      const Operand branch = b.input("branch", Kind::compute, {N, C}, normal(), C + gap);
      const Operand branch_bias =
          branch_biased ? b.input("branch_bias", Kind::compute, {C}, normal()) : Operand();
      const Operand weight = b.input("weight", Kind::compute, {C}, normal(0.2, 1));
      const Operand bias = norm_biased ? b.input("bias", Kind::compute, {C}, normal()) : Operand();
      const Operand normed =
          b.output("normed", Kind::compute, {N, C}, after_rounding(8e-3, probability), C + gap);
      const Operand mean = b.output("mean", Kind::master, {N}, after_rounding(2e-2, probability));
      const Operand rstd = b.output("rstd", Kind::master, {N}, after_rounding(8e-3, probability));
      b.run([&](Ops& ops, size_t s) {
        Ops::ResidualNorm p;
        p.residual = in_place ? residual_out[s] : residual_in[s];
        p.branch = branch[s];
        p.branch_bias = branch_bias[s];
        p.dropout = dropout(probability, T);
        p.residual_out = residual_out[s];
        p.weight = weight[s];
        p.bias = bias[s];
        p.normed = normed[s];
        p.mean = mean[s];
        p.rstd = rstd[s];
        ops.residual_norm_forward(p);
      });
    }
  }
}

// Without a branch the residual is only normalised and residual_out is not written.
TEST_P(NormOps, ForwardWithoutBranch) {
  for (const auto& [B, T, C] : sizes) {
    const int64_t N = B * T;
    Bench b = bench("residual_norm_forward without branch N=", N, " C=", C);
    const Operand residual = b.input("residual", Kind::compute, {N, C}, normal());
    const Operand untouched = b.input("residual_out", Kind::compute, {N, C}, normal());
    const Operand weight = b.input("weight", Kind::compute, {C}, normal(0.2, 1));
    const Operand bias = b.input("bias", Kind::compute, {C}, normal());
    const Operand normed = b.output("normed", Kind::compute, {N, C});
    const Operand mean = b.output("mean", Kind::master, {N});
    const Operand rstd = b.output("rstd", Kind::master, {N});
    b.run([&](Ops& ops, size_t s) {
      Ops::ResidualNorm p;
      p.residual = residual[s];
      p.residual_out = untouched[s];
      p.weight = weight[s];
      p.bias = bias[s];
      p.normed = normed[s];
      p.mean = mean[s];
      p.rstd = rstd[s];
      ops.residual_norm_forward(p);
    });
  }
}

// Without a weight only the sum is computed.
TEST_P(NormOps, ForwardWithoutNorm) {
  for (const auto& [B, T, C] : sizes) {
    const int64_t N = B * T;
    Bench b = bench("residual_norm_forward without norm N=", N, " C=", C);
    b.step(step);
    const Operand residual = b.input("residual", Kind::compute, {N, C}, normal());
    const Operand branch = b.input("branch", Kind::compute, {N, C}, normal());
    const Operand branch_bias = b.input("branch_bias", Kind::compute, {C}, normal());
    const Operand residual_out = b.output("residual_out", Kind::compute, {N, C}, after_dropout(0.1));
    b.run([&](Ops& ops, size_t s) {
      Ops::ResidualNorm p;
      p.residual = residual[s];
      p.branch = branch[s];
      p.branch_bias = branch_bias[s];
      p.dropout = dropout(0.1, T);
      p.residual_out = residual_out[s];
      ops.residual_norm_forward(p);
    });
  }
}

// A rank that holds a shard of the rows, not in whole samples, applies its part of the mask of the whole.
TEST_P(NormOps, DropoutMaskIsThatOfTheGlobalIndices) {
  for (const int64_t C : {int64_t{8}, width(100), int64_t{768}}) {
    for (const double probability : {0.1, 0.5}) {
      const int64_t B = 4, T = 40, first = 50, count_of_shard = 70;
      Dropout whole = dropout(probability, T), shard = whole;
      shard.first_row = first;
      Bench b = bench("dropout C=", C, " p=", probability);
      b.step(step);
      const Operand zero = b.input("zero", Kind::compute, {B * T, C}, constant(0));
      const Operand one = b.input("one", Kind::compute, {B * T, C}, constant(1));
      const Operand mask = b.output("mask", Kind::compute, {B * T, C}, same_bits());
      const Operand part = b.output("part", Kind::compute, {count_of_shard, C}, same_bits());
      const auto apply = [&](Ops& ops, size_t s, const Operand& out, const Dropout& d) {
        Ops::ResidualNorm p;
        p.residual = zero[s].rows(0, out[s].dim(0));
        p.branch = one[s].rows(0, out[s].dim(0));
        p.residual_out = out[s];
        p.dropout = d;
        ops.residual_norm_forward(p);
      };
      b.run([&](Ops& ops, size_t s) {
        apply(ops, s, mask, whole);
        apply(ops, s, part, shard);
      });

      const std::vector<double> all = b.values(mask), of_shard = b.values(part);
      const PhiloxKey key = random_key(whole.seed, RandomDomain::dropout, whole.stream());
      int64_t kept = 0;
      for (int64_t r = 0; r < B * T; ++r) {
        for (int64_t c = 0; c < C; ++c) {
          const int64_t t = r % T, e = t * C + c;
          const uint64_t sample = static_cast<uint64_t>(70 + 5 + r / T);
          const bool keep = random_block(key, e / 4, sample)[e % 4] >= dropout_threshold(probability);
          ASSERT_EQ(all[r * C + c] != 0, keep) << "row " << r << " channel " << c;
          if (r >= first && r < first + count_of_shard) {
            ASSERT_EQ(of_shard[(r - first) * C + c], all[r * C + c]);
          }
          kept += keep;
        }
      }
      const double count = static_cast<double>(B * T * C);
      EXPECT_NEAR(kept / count, 1 - probability, 4 * std::sqrt(probability * (1 - probability) / count));
    }
  }
}

// Rows of equal values have no variance; large means leave few digits for it; large values must not overflow.
TEST_P(NormOps, HardRows) {
  const int64_t C = width(100);
  const std::vector<std::pair<Values, Bounds>> rows = {{constant(3), Bounds()},
                                                       {constant(0), Bounds()},
                                                       {normal(1, 100), ill_conditioned(5e-5)},
                                                       {normal(1e6), Bounds()},
                                                       {normal(1e-6), Bounds()}};
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& [values, bounds] = rows[i];
    Bench b = bench("residual_norm_forward of hard rows ", i);
    const Operand residual = b.input("residual", Kind::compute, {5, C}, values);
    const Operand weight = b.input("weight", Kind::compute, {C}, normal(0.2, 1));
    const Operand bias = b.input("bias", Kind::compute, {C}, normal());
    const Operand normed = b.output("normed", Kind::compute, {5, C}, bounds);
    const Operand mean = b.output("mean", Kind::master, {5});
    const Operand rstd = b.output("rstd", Kind::master, {5}, bounds);
    b.run([&](Ops& ops, size_t s) {
      Ops::ResidualNorm p;
      p.residual = residual[s];
      p.weight = weight[s];
      p.bias = bias[s];
      p.normed = normed[s];
      p.mean = mean[s];
      p.rstd = rstd[s];
      ops.residual_norm_forward(p);
    });
  }
}

TEST_P(NormOps, ApplyGivesTheBitsOfTheForwardPass) {
  for (const auto& [B, T, C] : sizes) {
    const int64_t N = B * T;
    Bench b = bench("norm_apply N=", N, " C=", C);
    b.step(step);
    const Operand residual = b.input("residual", Kind::compute, {N, C}, normal());
    const Operand branch = b.input("branch", Kind::compute, {N, C}, normal());
    const Operand residual_out = b.output("residual_out", Kind::compute, {N, C}, after_dropout(0.1));
    const Operand weight = b.input("weight", Kind::compute, {C}, normal(0.2, 1));
    const Operand bias = C % 16 ? Operand() : b.input("bias", Kind::compute, {C}, normal());
    const Operand normed = b.output("normed", Kind::compute, {N, C}, after_rounding(8e-3, 0.1));
    const Operand again = b.output("again", Kind::compute, {N, C}, after_rounding(8e-3, 0.1));
    const Operand mean = b.output("mean", Kind::master, {N}, after_rounding(2e-2, 0.1));
    const Operand rstd = b.output("rstd", Kind::master, {N}, after_rounding(8e-3, 0.1));
    b.run([&](Ops& ops, size_t s) {
      Ops::ResidualNorm p;
      p.residual = residual[s];
      p.branch = branch[s];
      p.dropout = dropout(0.1, T);
      p.residual_out = residual_out[s];
      p.weight = weight[s];
      p.bias = bias[s];
      p.normed = normed[s];
      p.mean = mean[s];
      p.rstd = rstd[s];
      ops.residual_norm_forward(p);
      ops.norm_apply(residual_out[s], mean[s], rstd[s], weight[s], bias[s], again[s]);
    });
    EXPECT_EQ(b.values(normed), b.values(again)) << "N=" << N << " C=" << C;
  }
}

// Mean and 1 / standard deviation of each row of x.
std::pair<std::vector<double>, std::vector<double>> statistics(const std::vector<double>& x, int64_t C) {
  std::vector<double> means, rstds;
  for (size_t begin = 0; begin < x.size(); begin += C) {
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < C; ++c)
      sum += x[begin + c];
    for (int64_t c = 0; c < C; ++c)
      squares += (x[begin + c] - sum / C) * (x[begin + c] - sum / C);
    means.push_back(sum / C);
    rstds.push_back(1 / std::sqrt(squares / C + 1e-5));
  }
  return {means, rstds};
}

TEST_P(NormOps, Backward) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto [B, T, C] = sizes[i];
    const int64_t N = B * T;
    // 0: no branch  1: dropout  2: branch without dropout, own memory  3: the same memory as d_residual
    for (int variant = 0; variant < 4; ++variant) {
      for (const bool accumulate : {true, false}) {
        const int64_t gap = (i + variant) % 2 * 8;
        const bool biased = (i + variant + accumulate) % 2;
        Bench b =
            bench("residual_norm_backward N=", N, " C=", C, " variant ", variant, " accumulate ", accumulate);
        b.step(step);
        const Operand d_normed = b.input("d_normed", Kind::compute, {N, C}, normal(), C + gap);
        const Operand d_residual = accumulate
                                       ? b.inout("d_residual", Kind::compute, {N, C}, normal(), {}, C + gap)
                                       : b.output("d_residual", Kind::compute, {N, C}, {}, C + gap);
        const Operand x = b.input("x", Kind::compute, {N, C}, normal(1, 0.5), C + gap);
        const auto [means, rstds] = statistics(b.values(x), C);
        const Operand mean = b.input("mean", Kind::master, {N}, listed(means));
        const Operand rstd = b.input("rstd", Kind::master, {N}, listed(rstds));
        const Operand weight = b.input("weight", Kind::compute, {C}, normal(0.2, 1));
        const Operand d_weight = b.inout("d_weight", Kind::master, {C}, normal(3));
        const Operand d_bias = biased ? b.inout("d_bias", Kind::master, {C}, normal(3)) : Operand();
        const Operand d_branch = variant == 0 ? Operand()
                                 : variant == 3
                                     ? d_residual
                                     : b.output("d_branch", Kind::compute, {N, C},
                                                after_rounding(8e-3, variant == 1 ? 0.1 : 0), C + gap);
        const Operand d_branch_bias =
            d_branch ? b.inout("d_branch_bias", Kind::master, {C}, normal(3), after_rounding()) : Operand();
        b.run([&](Ops& ops, size_t s) {
          Ops::ResidualNormBackward p;
          p.d_normed = d_normed[s];
          p.d_residual = d_residual[s];
          p.accumulate = accumulate;
          p.x = x[s];
          p.mean = mean[s];
          p.rstd = rstd[s];
          p.weight = weight[s];
          p.d_weight = d_weight[s];
          p.d_bias = d_bias[s];
          p.d_branch = d_branch[s];
          p.d_branch_bias = d_branch_bias[s];
          p.dropout = dropout(variant == 1 ? 0.1 : 0, T);
          ops.residual_norm_backward(p);
        });
      }
    }
  }
}

// On a stage that ends with a plain sum the gradient from above only passes through.
TEST_P(NormOps, BackwardWithoutNorm) {
  for (const double probability : {0.0, 0.1}) {
    for (const auto& [B, T, C] : sizes) {
      const int64_t N = B * T;
      Bench b = bench("residual_norm_backward without norm N=", N, " C=", C, " p=", probability);
      b.step(step);
      const Operand d_residual = b.inout("d_residual", Kind::compute, {N, C}, normal(), same_bits());
      const std::vector<double> before = b.values(d_residual);
      const Operand d_branch = b.output("d_branch", Kind::compute, {N, C}, after_dropout(probability));
      const Operand d_branch_bias = b.inout("d_branch_bias", Kind::master, {C}, normal(), after_rounding());
      b.run([&](Ops& ops, size_t s) {
        Ops::ResidualNormBackward p;
        p.d_residual = d_residual[s];
        p.d_branch = d_branch[s];
        p.d_branch_bias = d_branch_bias[s];
        p.dropout = dropout(probability, T);
        ops.residual_norm_backward(p);
      });
      EXPECT_EQ(b.values(d_residual), before);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, NormOps, ::testing::ValuesIn(setups()), setup_name);

}  // namespace
}  // namespace hearth::testing
