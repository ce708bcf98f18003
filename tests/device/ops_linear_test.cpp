// Linear layers and GELU of every implementation against the reference.
#include "support/op_test.h"

namespace hearth::testing {
namespace {

struct Size {
  int64_t N, K, O;
};
// Channel counts with and without multiples of 16, row counts around tile edges, a vocabulary.
const std::vector<Size> all_sizes = {{1, 8, 8},      {2, 8, 24},    {31, 48, 64},   {63, 64, 100},
                                     {64, 100, 64},  {65, 64, 192}, {128, 48, 48},  {257, 64, 97},
                                     {257, 100, 48}, {5, 768, 768}, {12, 128, 512}, {3, 1600, 100},
                                     {3, 100, 1600}, {1, 768, 65},  {130, 8, 2048}, {2, 1280, 768}};

class LinearOps : public OpTest {
 protected:
  LinearOps() {
    for (const Size& z : all_sizes)
      sizes.push_back({z.N, width(z.K), width(z.O)});
  }
  std::vector<Size> sizes;
};

TEST_P(LinearOps, Forward) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto [N, K, O] = sizes[i];
    for (int variant = 0; variant < 6; ++variant) {
      const bool biased = variant % 2;
      const bool gelu = variant >= 2;
      const bool keeps_pre = variant >= 4;
      const int64_t gap = (i + variant) % 3 * 8;  // y with a row stride is a row of the KV cache
      Bench b = bench("linear_forward N=", N, " K=", K, " O=", O, " variant ", variant, " gap ", gap);
      const Operand x = b.input("x", Kind::compute, {N, K}, normal(), K + gap);
      const Operand w = b.input("w", Kind::compute, {O, K}, normal(1 / std::sqrt(K)));
      const Operand bias = biased ? b.input("bias", Kind::compute, {O}, normal()) : Operand();
      const Operand y = b.output("y", Kind::compute, {N, O}, gelu ? after_rounding() : Bounds(), O + gap);
      const Operand pre = keeps_pre ? b.output("pre", Kind::compute, {N, O}) : Operand();
      b.run([&](Ops& ops, size_t s) {
        ops.linear_forward(x[s], w[s], bias[s], y[s], gelu ? Activation::gelu : Activation::none, pre[s]);
      });
    }
  }
}

TEST_P(LinearOps, ForwardOverAWholeVocabulary) {
  Bench b = bench("linear_forward V=50304");
  const Operand x = b.input("x", Kind::compute, {3, 64}, normal());
  const Operand w = b.input("w", Kind::compute, {50304, 64}, normal(0.02));
  const Operand y = b.output("y", Kind::compute, {3, 50304});
  b.run([&](Ops& ops, size_t s) { ops.linear_forward(x[s], w[s], {}, y[s], Activation::none, {}); });
}

// The activation sees the rounded pre-activation, so recomputation gives the same bits.
TEST_P(LinearOps, RecomputedGeluIsBitEqual) {
  for (const bool keeps_pre : {true, false}) {
    Bench b = bench("gelu recomputed, pre kept: ", keeps_pre);
    const Operand x = b.input("x", Kind::compute, {65, 48}, normal());
    const int64_t O = width(100);
    const Operand w = b.input("w", Kind::compute, {O, 48}, normal(0.3));
    const Operand bias = b.input("bias", Kind::compute, {O}, normal());
    const Operand y = b.output("y", Kind::compute, {65, O}, after_rounding());
    const Operand pre = b.output("pre", Kind::compute, {65, O});
    const Operand again = b.output("again", Kind::compute, {65, O}, after_rounding());
    b.run([&](Ops& ops, size_t s) {
      ops.linear_forward(x[s], w[s], bias[s], y[s], Activation::gelu, keeps_pre ? pre[s] : Tensor{});
      if (!keeps_pre) ops.linear_forward(x[s], w[s], bias[s], pre[s], Activation::none, {});
      ops.gelu_forward(pre[s], again[s]);
    });
    EXPECT_EQ(b.values(y), b.values(again));
  }
}

TEST_P(LinearOps, BackwardInput) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto [N, K, O] = sizes[i];
    for (const bool gelu : {false, true}) {
      const int64_t gap = (i + gelu) % 3 * 8;
      Bench b = bench("linear_backward_input N=", N, " K=", K, " O=", O, " gelu ", gelu, " gap ", gap);
      const Operand dy = b.input("dy", Kind::compute, {N, O}, normal(), O + gap);
      const Operand w = b.input("w", Kind::compute, {O, K}, normal(1 / std::sqrt(O)));
      const Operand pre = gelu ? b.input("pre", Kind::compute, {N, K}, normal(2)) : Operand();
      const Operand dx = b.output("dx", Kind::compute, {N, K}, {}, K + gap);
      b.run([&](Ops& ops, size_t s) { ops.linear_backward_input(dy[s], w[s], dx[s], pre[s]); });
    }
  }
}

TEST_P(LinearOps, BackwardInputOverAWholeVocabulary) {
  Bench b = bench("linear_backward_input V=50304");
  const Operand dy = b.input("dy", Kind::compute, {2, 50304}, normal());
  const Operand w = b.input("w", Kind::compute, {50304, 24}, normal(0.02));
  const Operand dx = b.output("dx", Kind::compute, {2, 24});
  b.run([&](Ops& ops, size_t s) { ops.linear_backward_input(dy[s], w[s], dx[s], {}); });
}

TEST_P(LinearOps, BackwardWeightAccumulates) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto [N, K, O] = sizes[i];
    for (const bool biased : {false, true}) {
      const int64_t gap = (i + biased) % 3 * 8;
      Bench b = bench("linear_backward_weight N=", N, " K=", K, " O=", O, " bias ", biased, " gap ", gap);
      const Operand dy = b.input("dy", Kind::compute, {N, O}, normal(), O + gap);
      const Operand x = b.input("x", Kind::compute, {N, K}, normal(), K + gap);
      const Operand dw = b.inout("dw", Kind::master, {O, K}, normal(2));
      const Operand dbias = biased ? b.inout("dbias", Kind::master, {O}, normal(2)) : Operand();
      b.run([&](Ops& ops, size_t s) { ops.linear_backward_weight(dy[s], x[s], dw[s], dbias[s]); });
    }
  }
}

// Two calls add twice: what gradient accumulation over microbatches relies on.
TEST_P(LinearOps, BackwardWeightTwice) {
  Bench b = bench("linear_backward_weight twice");
  const Operand dy = b.input("dy", Kind::compute, {65, 48}, normal());
  const Operand x = b.input("x", Kind::compute, {65, width(100)}, normal());
  const Operand dw = b.inout("dw", Kind::master, {48, width(100)}, constant(0));
  const Operand dbias = b.inout("dbias", Kind::master, {48}, constant(0));
  b.run([&](Ops& ops, size_t s) {
    ops.linear_backward_weight(dy[s].rows(0, 32), x[s].rows(0, 32), dw[s], dbias[s]);
    ops.linear_backward_weight(dy[s].rows(32, 33), x[s].rows(32, 33), dw[s], dbias[s]);
  });
}

// A step that went wrong must leave nothing behind: working memory full of NaN is overwritten or not read.
TEST_P(LinearOps, AfterNaN) {
  for (const bool poisoned : {true, false}) {
    const auto [N, K, O] = poisoned ? Size{257, width(300), width(300)} : Size{37, width(52), width(41)};
    const Values values = poisoned ? constant(std::nan("")) : normal();
    Bench b = bench("linear layers after NaN");
    const Operand x = b.input("x", Kind::compute, {N, K}, values);
    const Operand w = b.input("w", Kind::compute, {O, K}, values);
    const Operand dy = b.input("dy", Kind::compute, {N, O}, values);
    const Operand y = b.output("y", Kind::compute, {N, O});
    const Operand dx = b.output("dx", Kind::compute, {N, K});
    const Operand dw = b.inout("dw", Kind::master, {O, K}, values);
    const Operand dbias = b.inout("dbias", Kind::master, {O}, values);
    const Bench::Body body = [&](Ops& ops, size_t s) {
      ops.linear_forward(x[s], w[s], {}, y[s], Activation::none, {});
      ops.linear_backward_input(dy[s], w[s], dx[s], {});
      ops.linear_backward_weight(dy[s], x[s], dw[s], dbias[s]);
    };
    if (poisoned)
      body(tested().ops(), 0);
    else
      b.run(body);
  }
}

TEST_P(LinearOps, GeluOfHardValues) {
  Bench b = bench("gelu_forward");
  std::vector<double> hard = {0, -0.0, 1e-30, -1e-30, 1, -1, 5, -5, 9, -9, 1e4, -1e4};
  hard.resize(16, 0.5);
  const Operand pre = b.input("pre", Kind::compute, {2, 8}, listed(hard), 16);
  const Operand y = b.output("y", Kind::compute, {2, 8}, {}, 24);
  const Operand dx = b.output("dx", Kind::compute, {2, 8});
  const Operand dy = b.input("dy", Kind::compute, {2, 8}, constant(1));
  const Operand identity = b.input("identity", Kind::compute, {8, 8},
                                   [](int64_t i, uint64_t) { return i / 8 == i % 8 ? 1.0 : 0.0; });
  b.run([&](Ops& ops, size_t s) {
    ops.gelu_forward(pre[s], y[s]);
    ops.linear_backward_input(dy[s], identity[s], dx[s], pre[s]);
  });
  for (const double gradient : b.values(dx))
    EXPECT_TRUE(gradient > -0.2 && gradient < 1.2) << gradient;
}

TEST_P(LinearOps, GeluForwardShapes) {
  for (const auto& [N, K, O] : sizes) {
    Bench b = bench("gelu_forward N=", N, " O=", O);
    const Operand pre = b.input("pre", Kind::compute, {N, O}, normal(2));
    const Operand y = b.output("y", Kind::compute, {N, O});
    b.run([&](Ops& ops, size_t s) { ops.gelu_forward(pre[s], y[s]); });
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, LinearOps, ::testing::ValuesIn(setups()), setup_name);

}  // namespace
}  // namespace hearth::testing
