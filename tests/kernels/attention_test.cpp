// kernels/attention*.cu against the reference in f64, on heads of a fused, padded activation.
//
// The allowed error is that of bf16 itself: `same_order` evaluates in f64 but rounds P, dS and the results to
// bf16, as the kernels must, and a kernel may be at most twice as far
// from the reference (and 1.2 times on average).
#include "kernels/device_array.h"

#include <cmath>
#include <functional>

#include "device/device.h"
#include "device/ops.h"
#include "kernels/attention.h"

namespace hearth::testing {
namespace {

using kernels::AttentionShape;
using kernels::HeadsView;

// Rows of a fused activation: q heads, k heads, v heads, then padding that is NaN.
struct Case {
  int64_t B, T, H, Hkv, D;
  int64_t padding = 8;

  int64_t columns() const { return (H + 2 * Hkv) * D; }
  int64_t stride() const { return columns() + padding; }
  int64_t out_columns() const { return H * D; }
  int64_t out_stride() const { return out_columns() + padding; }
  AttentionShape shape() const { return {B, T, H, Hkv, D}; }
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "B" << c.B << "_T" << c.T << "_H" << c.H << "_Hkv" << c.Hkv << "_D" << c.D;
}

// Rows of `columns` elements spread to rows of `stride`, the gaps and two more rows NaN.
std::vector<bf16> padded(const std::vector<bf16>& x, int64_t columns, int64_t stride) {
  const int64_t rows = static_cast<int64_t>(x.size()) / columns;
  bf16 nan;
  nan.bits = 0x7fff;
  std::vector<bf16> out(static_cast<size_t>((rows + 2) * stride), nan);
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(x.begin() + r * columns, columns, out.begin() + r * stride);
  return out;
}
// The inverse; nothing may have been written to the gaps.
std::vector<double> unpadded(const DeviceArray<bf16>& x, int64_t rows, int64_t columns, int64_t stride) {
  const std::vector<bf16> values = x.to_host();
  std::vector<double> out;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < stride; ++c) {
      const auto value = static_cast<float>(values[r * stride + c]);
      if (c < columns)
        out.push_back(value);
      else
        EXPECT_TRUE(std::isnan(value)) << "written beyond row " << r;
    }
  return out;
}

template <class T>
std::vector<double> widened(const std::vector<T>& x) {
  std::vector<double> out;
  for (const T& value : x)
    out.push_back(static_cast<float>(value));
  return out;
}
std::vector<bf16> to_bf16(const std::vector<double>& x) {
  std::vector<bf16> out;
  for (double value : x)
    out.push_back(bf16(static_cast<float>(value)));
  return out;
}
double round_bf16(double x) {
  return static_cast<float>(bf16(static_cast<float>(x)));
}

struct Inputs {
  std::vector<bf16> qkv;   // [B T, columns]
  std::vector<bf16> dout;  // [B T, H D]
};
Inputs normal_inputs(const Case& c, float scale) {
  return {random_normal<bf16>(c.B * c.T * c.columns(), scale, 1),
          random_normal<bf16>(c.B * c.T * c.out_columns(), 1, 2)};
}

// Everything that the forward and the backward pass give.
struct Results {
  std::vector<double> out, lse, delta, dqkv;
};

// The three operands of a fused [B T, columns] tensor.
struct Heads {
  Tensor q, k, v;
  Heads(const Tensor& fused, const Case& c)
      : q(fused.heads(c.B, 0, c.H, c.D)),
        k(fused.heads(c.B, c.H * c.D, c.Hkv, c.D)),
        v(fused.heads(c.B, (c.H + c.Hkv) * c.D, c.Hkv, c.D)) {}
};

// The reference in f64.  The backward pass is given out rounded to bf16 and lse to float, as kernels are.
Results reference(const Case& c, const Inputs& inputs) {
  const auto device = make_reference_device();
  const int64_t N = c.B * c.T;
  std::vector<double> qkv = widened(inputs.qkv), dout = widened(inputs.dout);
  Results r{std::vector<double>(N * c.out_columns()), std::vector<double>(N * c.H),
            std::vector<double>(N * c.H), std::vector<double>(N * c.columns())};
  const Heads in(Tensor(qkv.data(), DType::f64, {N, c.columns()}), c);
  const Heads d(Tensor(r.dqkv.data(), DType::f64, {N, c.columns()}), c);
  auto rows = [&](std::vector<double>& x) {
    return Tensor(x.data(), DType::f64, {N, c.out_columns()}).heads(c.B, 0, c.H, c.D);
  };
  auto per_row = [&](std::vector<double>& x) { return Tensor(x.data(), DType::f64, {c.B, c.H, c.T}); };
  device->ops().attention_forward(in.q, in.k, in.v, rows(r.out), per_row(r.lse));
  std::vector<double> out = widened(to_bf16(r.out)), lse;
  for (double value : r.lse)
    lse.push_back(static_cast<float>(value));
  device->ops().attention_backward(in.q, in.k, in.v, rows(out), rows(dout), per_row(lse), per_row(r.delta),
                                   d.q, d.k, d.v);
  return r;
}

// The same in f64 with the roundings that tensor cores need.  `exact` gives out, lse and delta.
Results same_order(const Case& c, const Inputs& inputs, const Results& exact) {
  const std::vector<double> qkv = widened(inputs.qkv), dout = widened(inputs.dout);
  const double scale = 1 / std::sqrt(static_cast<double>(c.D));
  Results r{std::vector<double>(exact.out.size()), exact.lse, exact.delta,
            std::vector<double>(exact.dqkv.size())};
  for (int64_t b = 0; b < c.B; ++b)
    for (int64_t h = 0; h < c.H; ++h) {
      const int64_t h_kv = h / (c.H / c.Hkv);
      auto q = [&](int64_t i) { return (b * c.T + i) * c.columns() + h * c.D; };
      auto k = [&](int64_t j) { return (b * c.T + j) * c.columns() + (c.H + h_kv) * c.D; };
      auto v = [&](int64_t j) { return k(j) + c.Hkv * c.D; };
      for (int64_t i = 0; i < c.T; ++i) {
        const int64_t row = (b * c.T + i) * c.out_columns() + h * c.D;
        const double lse = exact.lse[(b * c.H + h) * c.T + i], delta = exact.delta[(b * c.H + h) * c.T + i];
        for (int64_t j = 0; j <= i; ++j) {
          double s = 0, dP = 0;
          for (int64_t d = 0; d < c.D; ++d) {
            s += qkv[q(i) + d] * qkv[k(j) + d];
            dP += dout[row + d] * qkv[v(j) + d];
          }
          const double P = std::exp(s * scale - lse), dS = round_bf16(P * (dP - delta));
          for (int64_t d = 0; d < c.D; ++d) {
            r.out[row + d] += round_bf16(P) * qkv[v(j) + d];
            r.dqkv[q(i) + d] += scale * dS * qkv[k(j) + d];
            r.dqkv[k(j) + d] += scale * dS * qkv[q(i) + d];
            r.dqkv[v(j) + d] += round_bf16(P) * dout[row + d];
          }
        }
      }
    }
  for (double& value : r.out)
    value = round_bf16(value);
  for (double& value : r.dqkv)
    value = round_bf16(value);
  return r;
}

template <class Element>
HeadsView<Element> view(Element* data, int64_t time, int64_t stride, int64_t head_size) {
  return {data, time * stride, stride, head_size};
}

// Forward with its own out and lse, then backward with the reference's.
Results run(const Case& c, const Inputs& inputs, const Results& exact) {
  const int64_t N = c.B * c.T;
  const DeviceArray<bf16> qkv(padded(inputs.qkv, c.columns(), c.stride()));
  const DeviceArray<bf16> out(N * c.out_stride()), dqkv(N * c.stride());
  const DeviceArray<float> lse(N * c.H), delta(N * c.H);
  auto part = [&](bf16* data, int64_t column) { return view(data + column, c.T, c.stride(), c.D); };
  auto rows = [&](const DeviceArray<bf16>& x) { return view(x.data(), c.T, c.out_stride(), c.D); };
  const auto q = part(qkv.data(), 0), k = part(qkv.data(), c.H * c.D),
             v = part(qkv.data(), (c.H + c.Hkv) * c.D);
  kernels::attention_forward(c.shape(), q, k, v, rows(out), lse.data(), nullptr);

  const DeviceArray<bf16> given_out(padded(to_bf16(exact.out), c.out_columns(), c.out_stride()));
  const DeviceArray<bf16> dout(padded(inputs.dout, c.out_columns(), c.out_stride()));
  const DeviceArray<float> given_lse(std::vector<float>(exact.lse.begin(), exact.lse.end()));
  kernels::attention_backward(c.shape(), q, k, v, rows(given_out), rows(dout), given_lse.data(), delta.data(),
                              part(dqkv.data(), 0), part(dqkv.data(), c.H * c.D),
                              part(dqkv.data(), (c.H + c.Hkv) * c.D), nullptr);
  return {unpadded(out, N, c.out_columns(), c.out_stride()), widened(lse.to_host()), widened(delta.to_host()),
          unpadded(dqkv, N, c.columns(), c.stride())};
}

struct Error {
  double largest = 0, mean_square = 0;
};
Error error_of(const std::vector<double>& x, const std::vector<double>& exact,
               const std::function<bool(size_t)>& counts) {
  Error e;
  size_t n = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    if (!counts(i)) continue;
    const double difference = std::abs(x[i] - exact[i]);
    if (!(difference <= e.largest)) e.largest = difference;  // NaN stays
    e.mean_square += difference * difference;
    ++n;
  }
  if (n) e.mean_square /= static_cast<double>(n);
  return e;
}
void expect_close(const char* what, const std::vector<double>& x, const std::vector<double>& exact,
                  const std::vector<double>& same, const std::function<bool(size_t)>& counts) {
  ASSERT_EQ(x.size(), exact.size());
  const Error actual = error_of(x, exact, counts), allowed = error_of(same, exact, counts);
  constexpr double fp32 = 4e-6;
  EXPECT_LE(actual.largest, 2 * allowed.largest + fp32) << what;
  EXPECT_LE(std::sqrt(actual.mean_square), 1.2 * std::sqrt(allowed.mean_square) + fp32) << what;
}
void expect_near(const char* what, const std::vector<double>& x, const std::vector<double>& exact,
                 double relative) {
  double largest = 1;
  for (double value : exact)
    largest = std::max(largest, std::abs(value));
  const Error e = error_of(x, exact, [](size_t) { return true; });
  EXPECT_LE(e.largest, relative * largest) << what;
}

void expect_results(const Case& c, const Results& actual, const Results& exact, const Results& same) {
  // Column ranges of the fused gradient.
  auto between = [&](int64_t begin, int64_t end) {
    return [&c, begin, end](size_t i) {
      const int64_t column = static_cast<int64_t>(i) % c.columns();
      return column >= begin && column < end;
    };
  };
  expect_close("out", actual.out, exact.out, same.out, [](size_t) { return true; });
  expect_near("lse", actual.lse, exact.lse, 2e-6);
  expect_near("delta", actual.delta, exact.delta, 2e-6);
  const int64_t k = c.H * c.D, v = k + c.Hkv * c.D;
  expect_close("dq", actual.dqkv, exact.dqkv, same.dqkv, between(0, k));
  expect_close("dk", actual.dqkv, exact.dqkv, same.dqkv, between(k, v));
  expect_close("dv", actual.dqkv, exact.dqkv, same.dqkv, between(v, c.columns()));
}

void expect_same_bits(const Results& a, const Results& b) {
  EXPECT_TRUE(a.out == b.out && a.lse == b.lse && a.delta == b.delta && a.dqkv == b.dqkv)
      << "the result depends on the schedule";
}

// ---- every size under every schedule

class Attention : public ::testing::TestWithParam<Case> {};

TEST_P(Attention, AsTheReferenceUnderEverySchedule) {
  const Case& c = GetParam();
  const Inputs inputs = normal_inputs(c, 1.5f);
  const Results exact = reference(c, inputs), same = same_order(c, inputs, exact);
  Results first;
  for (const Schedule& schedule : all_schedules()) {
    SCOPED_TRACE(name_of(schedule));
    const WithSchedule with(schedule);
    const Results actual = run(c, inputs, exact);
    if (first.out.empty()) {
      first = actual;
      expect_results(c, actual, exact, same);
    }
    expect_same_bits(actual, first);
  }
}

INSTANTIATE_TEST_SUITE_P(, Attention,
                         ::testing::Values(Case{1, 1, 1, 1, 8}, Case{2, 2, 2, 2, 16}, Case{5, 7, 2, 2, 24},
                                           Case{1, 31, 3, 3, 32}, Case{2, 63, 2, 2, 64},
                                           Case{1, 64, 4, 2, 80}, Case{1, 65, 4, 1, 96},
                                           Case{1, 81, 1, 1, 128}, Case{3, 64, 6, 3, 16},
                                           Case{1, 129, 2, 1, 40}));

// ---- longer sequences, once

class LongAttention : public ::testing::TestWithParam<Case> {};

TEST_P(LongAttention, AsTheReference) {
  const Case& c = GetParam();
  const WithSchedule with({emulator::Order::random, emulator::Async::lazy});
  const Inputs inputs = normal_inputs(c, 1.5f);
  const Results exact = reference(c, inputs);
  expect_results(c, run(c, inputs, exact), exact, same_order(c, inputs, exact));
}

INSTANTIATE_TEST_SUITE_P(, LongAttention,
                         ::testing::Values(Case{1, 257, 2, 1, 64}, Case{1, 200, 1, 1, 128},
                                           Case{1, 1000, 1, 1, 16}, Case{1, 1023, 1, 1, 64}));

// ---- values that break a careless softmax

// All weight on one key; scores of many thousands.
TEST(AttentionValues, HugeScores) {
  for (const Case& c : {Case{1, 65, 2, 2, 64}, Case{1, 130, 1, 1, 16}}) {
    for (const float scale : {20.0f, 60.0f}) {
      SCOPED_TRACE(::testing::Message() << c << " scale " << scale);
      const Inputs inputs = normal_inputs(c, scale);
      const Results exact = reference(c, inputs), actual = run(c, inputs, exact);
      expect_near("out", actual.out, exact.out, 4e-3);
      expect_near("lse", actual.lse, exact.lse, 1e-6);
      expect_near("dqkv", actual.dqkv, exact.dqkv, 8e-3);
    }
  }
}

// Scores that grow (or fall) along the sequence: the running maximum changes with every tile (or never).
TEST(AttentionValues, RisingAndFallingMaximum) {
  const Case c{1, 257, 1, 1, 16};
  for (const double slope : {0.5, -0.5}) {
    SCOPED_TRACE(slope);
    Inputs inputs = normal_inputs(c, 1);
    for (int64_t t = 0; t < c.T; ++t)
      for (int64_t d = 0; d < c.D; ++d) {
        inputs.qkv[t * c.columns() + d] = bf16(1.0f);
        inputs.qkv[t * c.columns() + c.D + d] = bf16(static_cast<float>(slope * static_cast<double>(t)));
      }
    const Results exact = reference(c, inputs);
    expect_results(c, run(c, inputs, exact), exact, same_order(c, inputs, exact));
  }
}

// With equal keys every weight of row i is 1 / (i + 1), and v = one-hot columns show which keys were counted.
TEST(AttentionValues, EqualKeysGiveTheMean) {
  const Case c{1, 100, 1, 1, 128};
  Inputs inputs = normal_inputs(c, 1);
  for (int64_t t = 0; t < c.T; ++t)
    for (int64_t d = 0; d < c.D; ++d) {
      inputs.qkv[t * c.columns() + c.D + d] = bf16(0.25f);
      inputs.qkv[t * c.columns() + 2 * c.D + d] = bf16(d == t ? 1.0f : 0.0f);
    }
  const Results exact = reference(c, inputs), actual = run(c, inputs, exact);
  for (int64_t i = 0; i < c.T; ++i)
    for (int64_t d = 0; d < c.D; ++d)
      EXPECT_EQ(actual.out[i * c.D + d], d <= i ? round_bf16(1.0 / static_cast<double>(i + 1)) : 0.0)
          << "query " << i << " key " << d;
}

// ---- layouts and bad shapes

// [B, H, T, D] in memory instead of [B, T, H, D].
TEST(AttentionLayout, HeadsFirst) {
  const int64_t B = 2, T = 33, H = 3, D = 32;
  const auto q = random_normal<bf16>(B * T * H * D, 1, 1), k = random_normal<bf16>(B * T * H * D, 1, 2),
             v = random_normal<bf16>(B * T * H * D, 1, 3);
  auto forward = [&](int64_t token, int64_t head) {
    // Element (b, t, h, d) of the random values, wherever the layout puts it.
    auto placed = [&](const std::vector<bf16>& x) {
      std::vector<bf16> y(x.size());
      for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
        const int64_t d = i % D, h = i / D % H, t = i / D / H % T, b = i / D / H / T;
        y[b * T * H * D + t * token + h * head + d] = x[i];
      }
      return y;
    };
    const DeviceArray<bf16> dq(placed(q)), dk(placed(k)), dv(placed(v)), out(B * T * H * D);
    const DeviceArray<float> lse(B * T * H);
    auto heads = [&](const DeviceArray<bf16>& x) {
      return HeadsView<bf16>{x.data(), T * H * D, token, head};
    };
    kernels::attention_forward({B, T, H, H, D}, heads(dq), heads(dk), heads(dv), heads(out), lse.data(),
                               nullptr);
    const auto values = out.to_host();
    std::vector<float> in_order;
    for (int64_t i = 0; i < B * T * H * D; ++i) {
      const int64_t d = i % D, h = i / D % H, t = i / D / H % T, b = i / D / H / T;
      in_order.push_back(static_cast<float>(values[b * T * H * D + t * token + h * head + d]));
    }
    return in_order;
  };
  EXPECT_EQ(forward(H * D, D), forward(D, T * D));
}

TEST(AttentionLayoutDeathTest, BadShapesAreRefused) {
  const DeviceArray<bf16> x(4096);
  const DeviceArray<float> lse(64);
  auto forward = [&](const AttentionShape& shape, int64_t offset, int64_t stride) {
    const HeadsView<bf16> v{x.data() + offset, stride, stride, shape.head_size};
    kernels::attention_forward(shape, v, v, v, v, lse.data(), nullptr);
  };
  EXPECT_DEATH(forward({1, 1, 1, 1, 136}, 0, 136), "multiple of 8 up to 128, not 136");
  EXPECT_DEATH(forward({1, 1, 1, 1, 12}, 0, 16), "multiple of 8 up to 128, not 12");
  EXPECT_DEATH(forward({1, 1, 3, 2, 16}, 0, 64), "3 heads cannot share 2");
  EXPECT_DEATH(forward({1, 1, 1, 1, 16}, 4, 16), "aligned");
  EXPECT_DEATH(forward({1, 1, 1, 1, 16}, 0, 20), "multiples of 8");
  forward({0, 1, 1, 1, 16}, 0, 16);
}

// ---- decode

class AttentionDecode : public ScheduledTest {};
INSTANTIATE_TEST_SUITE_P(, AttentionDecode, every_schedule(), schedule_name);

// Only the first `length` positions of the cache may be read: the others are NaN.
void test_decode(Case c, int64_t length) {
  SCOPED_TRACE(::testing::Message() << c << " length " << length);
  const int64_t capacity = c.T;
  std::vector<bf16> cache = random_normal<bf16>(c.B * capacity * c.columns(), 1.5f, 7);
  for (size_t i = 0; i < cache.size(); ++i)
    if (static_cast<int64_t>(i) / c.columns() % capacity >= length) cache[i].bits = 0x7fff;
  const DeviceArray<bf16> device(cache), out(c.B * c.out_columns());
  auto part = [&](int64_t column) { return view(device.data() + column, capacity, c.columns(), c.D); };
  auto q = part((length - 1) * c.columns());
  kernels::attention_decode({c.B, length, c.H, c.Hkv, c.D}, q, part(c.H * c.D), part((c.H + c.Hkv) * c.D),
                            view(out.data(), 1, c.out_columns(), c.D), nullptr);

  std::vector<double> wide = widened(cache), exact(c.B * c.out_columns());
  const Heads in(Tensor(wide.data(), DType::f64, {c.B * capacity, c.columns()}), c);
  const Tensor expected = Tensor(exact.data(), DType::f64, {c.B, c.out_columns()}).heads(c.B, 0, c.H, c.D);
  make_reference_device()->ops().attention_decode(in.q.slice(1, length - 1, 1), in.k, in.v, length, expected);
  const std::vector<double> actual = widened(out.to_host());
  for (size_t i = 0; i < exact.size(); ++i)
    ASSERT_NEAR(actual[i], exact[i], std::abs(exact[i]) / 255 + 2e-6) << "element " << i;
}

TEST_P(AttentionDecode, AsTheReference) {
  for (const int64_t length : {1, 2, 33, 64, 65}) {
    test_decode({1, 66, 2, 2, 8}, length);
    test_decode({2, 66, 4, 2, 64}, length);
  }
  test_decode({3, 260, 2, 2, 24}, 257);
  test_decode({1, 260, 4, 1, 80}, 257);
  test_decode({2, 40, 2, 1, 128}, 31);
}

}  // namespace
}  // namespace hearth::testing
