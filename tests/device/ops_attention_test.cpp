// Attention of every implementation against the reference, on heads views of fused buffers.
#include "support/op_test.h"

namespace hearth::testing {
namespace {

class AttentionOps : public OpTest {
 protected:
  // Tensor cores multiply rounded weights (and, in the backward pass, rounded gradients of scores), each
  // wrong by 2^-10 of itself, say; the bound against the exact values is the same for all.
  static Bounds with_rounded_weights(Bounds bounds = {}) {
    if (GetParam().rounds_probabilities) bounds.bf16_same = std::max(bounds.bf16_same, 5e-3);
    return bounds;
  }
};

struct Size {
  int64_t B, T, H, Hkv, D;
  int64_t width() const { return (H + 2 * Hkv) * D; }
};
const std::vector<Size> sizes = {{1, 1, 1, 1, 8},     {2, 2, 2, 2, 16},   {1, 31, 3, 3, 32},
                                 {2, 63, 2, 2, 64},   {1, 64, 4, 2, 80},  {1, 65, 4, 1, 96},
                                 {1, 128, 2, 2, 128}, {1, 257, 2, 1, 64}, {1, 257, 1, 1, 8},
                                 {3, 64, 6, 3, 16},   {1, 129, 1, 1, 32}, {5, 7, 2, 2, 24}};

// The q, k and v heads of a fused [B*T, (H + 2 Hkv) D] buffer.
struct Heads {
  Operand q, k, v;
  Heads(const Operand& qkv, const Size& z)
      : q(qkv.heads(z.B, 0, z.H, z.D)),
        k(qkv.heads(z.B, z.H * z.D, z.Hkv, z.D)),
        v(qkv.heads(z.B, (z.H + z.Hkv) * z.D, z.Hkv, z.D)) {}
};

std::string describe(const Size& z) {
  return text(" B=", z.B, " T=", z.T, " H=", z.H, " Hkv=", z.Hkv, " D=", z.D);
}

TEST_P(AttentionOps, Forward) {
  for (const Size& z : sizes) {
    Bench b = bench("attention_forward", describe(z));
    const Operand qkv = b.input("qkv", Kind::compute, {z.B * z.T, z.width()}, normal(1.5));
    const Heads in(qkv, z);
    const Operand out = b.output("out", Kind::compute, {z.B * z.T, z.H * z.D}, with_rounded_weights());
    const Operand lse = b.output("lse", Kind::master, {z.B, z.H, z.T});
    const Operand out_heads = out.heads(z.B, 0, z.H, z.D);
    b.run(
        [&](Ops& ops, size_t s) { ops.attention_forward(in.q[s], in.k[s], in.v[s], out_heads[s], lse[s]); });
  }
}

// q, k, v and out as dense [B, T, H, D] tensors of their own.
TEST_P(AttentionOps, ForwardOnContiguousTensors) {
  const Size z{2, 33, 4, 2, 32};
  Bench b = bench("attention_forward contiguous");
  const Operand q = b.input("q", Kind::compute, {z.B, z.T, z.H, z.D}, normal());
  const Operand k = b.input("k", Kind::compute, {z.B, z.T, z.Hkv, z.D}, normal());
  const Operand v = b.input("v", Kind::compute, {z.B, z.T, z.Hkv, z.D}, normal());
  const Operand out = b.output("out", Kind::compute, {z.B, z.T, z.H, z.D}, with_rounded_weights());
  const Operand lse = b.output("lse", Kind::master, {z.B, z.H, z.T});
  b.run([&](Ops& ops, size_t s) { ops.attention_forward(q[s], k[s], v[s], out[s], lse[s]); });
}

// Scores of many thousands: all weight on one key, and no overflow before the maximum is known.
TEST_P(AttentionOps, ForwardWithHugeScores) {
  for (const Size& z : {Size{1, 65, 2, 2, 64}, Size{1, 130, 1, 1, 16}}) {
    Bench b = bench("attention_forward huge", describe(z));
    const Operand qkv = b.input("qkv", Kind::compute, {z.B * z.T, z.width()}, normal(60));
    const Heads in(qkv, z);
    const Operand out = b.output("out", Kind::compute, {z.B * z.T, z.H * z.D}, ill_conditioned(1e-3, 2e-3));
    const Operand lse = b.output("lse", Kind::master, {z.B, z.H, z.T});
    const Operand out_heads = out.heads(z.B, 0, z.H, z.D);
    b.run(
        [&](Ops& ops, size_t s) { ops.attention_forward(in.q[s], in.k[s], in.v[s], out_heads[s], lse[s]); });
  }
}

// Scores that grow along the sequence: the running maximum of an online softmax changes with every tile.
TEST_P(AttentionOps, ForwardWithARisingMaximum) {
  const Size z{1, 257, 1, 1, 16};
  for (const double slope : {0.5, -0.5}) {
    Bench b = bench("attention_forward rising ", slope);
    const Operand qkv = b.input("qkv", Kind::compute, {z.T, z.width()}, [&](int64_t i, uint64_t seed) {
      const int64_t t = i / z.width(), column = i % z.width();
      if (column < z.D) return 1.0;
      if (column < 2 * z.D) return slope * static_cast<double>(t);
      return normal()(i, seed);
    });
    const Heads in(qkv, z);
    const Operand out = b.output("out", Kind::compute, {z.T, z.D}, with_rounded_weights());
    const Operand lse = b.output("lse", Kind::master, {1, 1, z.T});
    const Operand out_heads = out.heads(1, 0, 1, z.D);
    b.run(
        [&](Ops& ops, size_t s) { ops.attention_forward(in.q[s], in.k[s], in.v[s], out_heads[s], lse[s]); });
  }
}

// out and lse of the reference in f64, to be given (rounded) to every side of a backward case.
struct ForwardValues {
  std::vector<double> out, lse;
};
ForwardValues forward_values(const std::vector<double>& qkv, const Size& z) {
  const auto device = make_reference_device();
  std::vector<double> input = qkv;
  ForwardValues f{std::vector<double>(z.B * z.T * z.H * z.D), std::vector<double>(z.B * z.H * z.T)};
  const Tensor fused(input.data(), DType::f64, {z.B * z.T, z.width()});
  const Tensor out(f.out.data(), DType::f64, {z.B * z.T, z.H * z.D});
  device->ops().attention_forward(fused.heads(z.B, 0, z.H, z.D), fused.heads(z.B, z.H * z.D, z.Hkv, z.D),
                                  fused.heads(z.B, (z.H + z.Hkv) * z.D, z.Hkv, z.D),
                                  out.heads(z.B, 0, z.H, z.D),
                                  Tensor(f.lse.data(), DType::f64, {z.B, z.H, z.T}));
  return f;
}

void backward(Bench& b, const Size& z, double scale, const Bounds& bounds) {
  const Operand qkv = b.input("qkv", Kind::compute, {z.B * z.T, z.width()}, normal(scale));
  const ForwardValues f = forward_values(b.values(qkv), z);
  const Operand out = b.input("out", Kind::compute, {z.B * z.T, z.H * z.D}, listed(f.out));
  const Operand dout = b.input("dout", Kind::compute, {z.B * z.T, z.H * z.D}, normal());
  const Operand lse = b.input("lse", Kind::master, {z.B, z.H, z.T}, listed(f.lse));
  const Operand scratch = b.output("scratch", Kind::master, {z.B, z.H, z.T}, ill_conditioned(2e-6));
  const Operand dqkv = b.output("dqkv", Kind::compute, {z.B * z.T, z.width()}, bounds);
  const Heads in(qkv, z), d(dqkv, z);
  const Operand out_heads = out.heads(z.B, 0, z.H, z.D), dout_heads = dout.heads(z.B, 0, z.H, z.D);
  b.run([&](Ops& ops, size_t s) {
    ops.attention_backward(in.q[s], in.k[s], in.v[s], out_heads[s], dout_heads[s], lse[s], scratch[s], d.q[s],
                           d.k[s], d.v[s]);
  });
  b.expect_close("dv", d.v, Kind::compute, bounds);
  if (z.T == 1) return;  // dq and dk are zero, up to cancellation
  b.expect_close("dq", d.q, Kind::compute, bounds);
  b.expect_close("dk", d.k, Kind::compute, bounds);
}

TEST_P(AttentionOps, Backward) {
  for (const Size& z : sizes) {
    Bench b = bench("attention_backward", describe(z));
    backward(b, z, 1, with_rounded_weights({.f32 = 4e-6, .bf16_same = 5e-4}));
  }
}

TEST_P(AttentionOps, BackwardWithHugeScores) {
  const Size z{1, 65, 2, 2, 64};
  Bench b = bench("attention_backward huge");
  backward(b, z, 20, ill_conditioned(2e-3, 4e-3));
}

// A step that went wrong must leave nothing behind: working memory full of NaN is overwritten or not read.
TEST_P(AttentionOps, AfterNaN) {
  for (const bool poisoned : {true, false}) {
    const Size z = poisoned ? Size{2, 130, 2, 1, 128} : Size{1, 37, 2, 1, 24};
    const Values values = poisoned ? constant(std::nan("")) : normal();
    Bench b = bench("attention after NaN");
    const int64_t N = z.B * z.T;
    const Operand qkv = b.input("qkv", Kind::compute, {N, z.width()}, values);
    const Operand dout = b.input("dout", Kind::compute, {N, z.H * z.D}, values);
    const Operand out = b.output("out", Kind::compute, {N, z.H * z.D}, with_rounded_weights());
    const Operand lse = b.output("lse", Kind::master, {z.B, z.H, z.T});
    const Operand scratch = b.output("scratch", Kind::master, {z.B, z.H, z.T}, ill_conditioned(4e-6, 1e-2));
    const Operand dqkv =
        b.output("dqkv", Kind::compute, {N, z.width()}, with_rounded_weights(ill_conditioned(4e-6)));
    const Heads in(qkv, z), d(dqkv, z);
    const Operand out_heads = out.heads(z.B, 0, z.H, z.D), dout_heads = dout.heads(z.B, 0, z.H, z.D);
    const Bench::Body body = [&](Ops& ops, size_t s) {
      ops.attention_forward(in.q[s], in.k[s], in.v[s], out_heads[s], lse[s]);
      ops.attention_backward(in.q[s], in.k[s], in.v[s], out_heads[s], dout_heads[s], lse[s], scratch[s],
                             d.q[s], d.k[s], d.v[s]);
    };
    if (poisoned)
      body(tested().ops(), 0);
    else
      b.run(body);
  }
}

// One token against a cache; what lies behind `length` is NaN and must not be read.
TEST_P(AttentionOps, Decode) {
  for (const Size& z :
       {Size{1, 1, 2, 2, 8}, Size{2, 1, 4, 2, 64}, Size{1, 1, 4, 1, 80}, Size{3, 1, 2, 2, 128}}) {
    for (const int64_t length : {1, 2, 31, 63, 64, 65, 128, 257}) {
      const int64_t capacity = 260;
      Bench b = bench("attention_decode length ", length, describe(z));
      const Operand cache =
          b.input("cache", Kind::compute, {z.B * capacity, z.width()}, [&](int64_t i, uint64_t seed) {
            return i / z.width() % capacity < length ? normal(1.5)(i, seed) : std::nan("");
          });
      const Heads in(cache, z);
      const Operand q = in.q.slice(1, length - 1, 1);
      const Operand out = b.output("out", Kind::compute, {z.B, z.H * z.D});
      const Operand out_heads = out.heads(z.B, 0, z.H, z.D);
      b.run([&](Ops& ops, size_t s) { ops.attention_decode(q[s], in.k[s], in.v[s], length, out_heads[s]); });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, AttentionOps, ::testing::ValuesIn(setups()), setup_name);

}  // namespace
}  // namespace hearth::testing
