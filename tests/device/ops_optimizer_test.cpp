// AdamW, sums, conversions and copies of every implementation against the reference.
#include "support/op_test.h"

namespace hearth::testing {
namespace {

class OptimizerOps : public OpTest {};

const std::vector<int64_t> lengths = {1, 7, 8, 31, 64, 100, 1000, 4099, 70001};

StepParams step_params(int t, const AdamWConfig& config) {
  StepParams p;
  p.learning_rate = 3e-3;
  p.clip_scale = t == 2 ? 0.37 : 1;
  p.bias_correction1 = 1 - std::pow(config.beta1, t);
  p.bias_correction2 = 1 - std::pow(config.beta2, t);
  return p;
}

// Three steps over segments of many lengths, with and without decay and compute weights.
TEST_P(OptimizerOps, AdamW) {
  for (const bool keeps_weights : {true, false}) {
    if (!keeps_weights && GetParam().compute == DType::bf16) continue;
    Bench b = bench("adamw, compute weights: ", keeps_weights);
    const AdamWConfig config;
    struct Segment {
      Operand master, moment1, moment2, grad, weight;
      bool decay;
    };
    std::vector<Segment> segments;
    for (const int64_t n : lengths) {
      Segment x;
      x.master = b.inout(text("master ", n), Kind::master, {n}, normal(0.1));
      x.moment1 = b.inout(text("moment1 ", n), Kind::master, {n}, constant(0));
      x.moment2 = b.inout(text("moment2 ", n), Kind::master, {n}, constant(0));
      x.grad = b.inout(text("grad ", n), Kind::master, {n}, normal());
      if (keeps_weights) x.weight = b.output(text("weight ", n), Kind::compute, {n});
      x.decay = n % 2;
      segments.push_back(x);
    }
    for (int t = 1; t <= 3; ++t) {
      b.step(step_params(t, config));
      b.run([&](Ops& ops, size_t s) {
        std::vector<AdamWSegment> all;
        for (const Segment& x : segments)
          all.push_back({x.master[s], x.moment1[s], x.moment2[s], x.grad[s], x.weight[s], x.decay});
        ops.adamw(all, config);
      });
      for (const Segment& x : segments) {
        const std::vector<double> grad = b.values(x.grad), master = b.values(x.master);
        EXPECT_EQ(std::count(grad.begin(), grad.end(), 0.0), static_cast<int64_t>(grad.size()));
        if (!x.weight) continue;
        const std::vector<double> weight = b.values(x.weight);
        for (size_t i = 0; i < weight.size(); ++i) {
          const auto rounded = static_cast<float>(master[i]);
          ASSERT_EQ(weight[i], b.is_bf16() ? static_cast<float>(bf16(rounded)) : rounded);
        }
      }
      // The next microbatch's gradients arrive.
      std::vector<Operand> arriving;
      for (const Segment& x : segments)
        arriving.push_back(b.input("arriving", Kind::master, {x.grad[0].dim(0)}, normal()));
      b.run([&](Ops& ops, size_t s) {
        for (size_t i = 0; i < segments.size(); ++i)
          ops.add(segments[i].grad[s], arriving[i][s], segments[i].grad[s]);
      });
    }
  }
}

// Gradients of zero leave a parameter without decay where it is; huge and tiny ones move it by about lr.
TEST_P(OptimizerOps, AdamWOfHardGradients) {
  Bench b = bench("adamw of hard gradients");
  const AdamWConfig config;
  const std::vector<double> gradients = {0, 1e-15, -1e-15, 1e-8, -1, 1e15, -1e15, 1e-30};
  const Operand master = b.inout("master", Kind::master, {8}, constant(0.5));
  const Operand moment1 = b.inout("moment1", Kind::master, {8}, constant(0));
  const Operand moment2 = b.inout("moment2", Kind::master, {8}, constant(0));
  const Operand grad = b.inout("grad", Kind::master, {8}, listed(gradients));
  const Operand weight = b.output("weight", Kind::compute, {8});
  b.step(step_params(1, config));
  b.run([&](Ops& ops, size_t s) {
    const std::vector<AdamWSegment> one = {{master[s], moment1[s], moment2[s], grad[s], weight[s], false}};
    ops.adamw(one, config);
  });
  const std::vector<double> after = b.values(master);
  EXPECT_EQ(after[0], 0.5);
  EXPECT_NEAR(after[5], 0.5 - 3e-3, 1e-6);
  EXPECT_NEAR(after[6], 0.5 + 3e-3, 1e-6);
}

TEST_P(OptimizerOps, Sums) {
  for (const int64_t n : lengths) {
    Bench b = bench("sums of ", n);
    const Operand x = b.input("x", Kind::master, {n}, normal(2, 1));
    const Operand y = b.input("y", Kind::compute, {n}, normal(2));
    const Operand squares = b.inout("squares", Kind::f64, {1}, constant(10));
    const Operand compute_squares = b.inout("squares of c", Kind::f64, {1}, constant(10));
    const Operand total = b.inout("sum", Kind::f64, {1}, constant(-5));
    b.run([&](Ops& ops, size_t s) {
      ops.sum_of_squares(x[s], squares[s]);
      ops.sum_of_squares(y[s], compute_squares[s]);
      ops.sum(x[s], total[s]);
    });
  }
}

TEST_P(OptimizerOps, SumOfSquaresOfMatrices) {
  Bench b = bench("sum of squares of a matrix");
  const Operand x = b.input("x", Kind::master, {48, 100}, normal());
  const Operand total = b.inout("total", Kind::f64, {1}, constant(0));
  b.run([&](Ops& ops, size_t s) { ops.sum_of_squares(x[s], total[s]); });
}

// The norm decides whether a step is skipped: it must show what is not finite, wherever it is.
TEST_P(OptimizerOps, SumOfSquaresShowsWhatIsNotFinite) {
  constexpr int64_t n = 4099;
  Buffer memory(tested(), n * sizeof(float)), total_memory(tested(), sizeof(double));
  const Tensor x(memory.data(), DType::f32, {n}), total(total_memory.data(), DType::f64, {1});
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (const int64_t where : {0, 77, 4098}) {
      std::vector<float> values(n, 0.5f);
      values[where] = bad;
      tested().copy_in(x, values.data());
      tested().ops().fill_zero(total);
      tested().ops().sum_of_squares(x, total);
      double result = 0;
      tested().copy_out(&result, total);
      EXPECT_FALSE(std::isfinite(result)) << bad << " at " << where;
    }
  }
}

TEST_P(OptimizerOps, Add) {
  for (const Kind kind : {Kind::compute, Kind::master}) {
    for (const int64_t n : lengths) {
      Bench b = bench("add of ", n);
      const Operand x = b.input("x", kind, {n}, normal());
      const Operand y = b.input("y", kind, {n}, normal());
      const Operand out = b.output("out", kind, {n}, same_bits());
      const Operand left = b.inout("left", kind, {n}, normal(), same_bits());
      const Operand right = b.inout("right", kind, {n}, normal(), same_bits());
      b.run([&](Ops& ops, size_t s) {
        ops.add(x[s], y[s], out[s]);
        ops.add(left[s], x[s], left[s]);
        ops.add(x[s], right[s], right[s]);
      });
    }
  }
}

// Between all types, and bf16 with ties, infinities and subnormal numbers.
TEST_P(OptimizerOps, Cast) {
  const std::vector<double> hard = {1 + 1.0 / 256,
                                    1 + 3.0 / 256,
                                    -1 - 1.0 / 256,
                                    1.00390626,
                                    3.3e38,
                                    -3.3e38,
                                    std::numeric_limits<double>::infinity(),
                                    1e-40,
                                    0,
                                    -0.0,
                                    65536.5,
                                    1.0 / 3};
  for (const int64_t n : {1, 12, 100, 4099}) {
    Bench b = bench("cast of ", n);
    const Values values = [&](int64_t i, uint64_t seed) {
      return i < 12 && n >= 12 ? hard[i] : normal()(i, seed);
    };
    const Operand master = b.input("m", Kind::master, {n}, values);
    const Operand compute = b.input("c", Kind::compute, {n}, values);
    const Operand to_compute = b.output("m to c", Kind::compute, {n}, same_bits());
    const Operand to_master = b.output("c to m", Kind::master, {n}, same_bits());
    const Operand to_f64 =
        GetParam().casts_to_f64 ? b.output("m to f64", Kind::f64, {n}, same_bits()) : Operand();
    const Operand c_to_c = b.output("c to c", Kind::compute, {n}, same_bits());
    b.run([&](Ops& ops, size_t s) {
      ops.cast(master[s], to_compute[s]);
      ops.cast(compute[s], to_master[s]);
      if (to_f64) ops.cast(master[s], to_f64[s]);
      ops.cast(compute[s], c_to_c[s]);
    });
    if (b.bitwise()) continue;
    const std::vector<double> from = b.values(master), to = b.values(to_compute);
    for (int64_t i = 0; i < n && b.is_bf16(); ++i)
      ASSERT_EQ(to[i], static_cast<float>(bf16(static_cast<float>(from[i])))) << from[i];
  }
}

TEST_P(OptimizerOps, CopyAndFillZero) {
  for (const Kind kind : {Kind::compute, Kind::master, Kind::f64, Kind::i32}) {
    for (const int64_t n : {1, 31, 4099}) {
      Bench b = bench("copy of ", n);
      const Operand from = b.input("from", kind, {n}, integers(-100, 100));
      const Operand to = b.output("to", kind, {n}, same_bits());
      const Operand zero = b.output("zero", kind, {n}, same_bits());
      b.run([&](Ops& ops, size_t s) {
        ops.copy(from[s], to[s]);
        ops.fill_zero(zero[s]);
      });
      EXPECT_EQ(b.values(to), b.values(from));
      EXPECT_EQ(b.values(zero), std::vector<double>(n, 0));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, OptimizerOps, ::testing::ValuesIn(setups()), setup_name);

}  // namespace
}  // namespace hearth::testing
