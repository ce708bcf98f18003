// Tests of matrix products that every GEMM engine passes: exact with whole numbers in every layout.
//
// Every matrix is followed, at the end of each row and after the last one, by NaN, which a wrong bound would
// pull in; outputs are NaN at first, so that elements nobody writes, and writes beyond the rows, show.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/device_array.h"
#include "kernels/gemm.h"

namespace hearth::testing {

using kernels::GemmArgs;
using kernels::GemmTile;
using kernels::Product;

struct Engine {
  size_t (*workspace_bytes)(const GemmArgs&);
  void (*gemm)(const GemmArgs&, void* workspace, cudaStream_t stream);
};

struct Case {
  int64_t m, n, k;
  GemmTile tile = GemmTile::automatic;
  int splits = 0;
};
inline std::string name_of(const Case& s) {
  return std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k);
}

// rows x columns on the host and, with a row stride, on the device.
template <class T>
struct Matrix {
  Matrix(std::vector<T> values, int64_t rows, int64_t columns, int64_t padding)
      : host(std::move(values)), rows(rows), columns(columns), stride(columns + padding), device(padded()) {}
  Matrix(int64_t rows, int64_t columns, int64_t padding)  // NaN: an output
      : rows(rows), columns(columns), stride(columns + padding), device((rows + 2) * stride) {}

  float operator()(int64_t row, int64_t column) const {
    return static_cast<float>(host[static_cast<size_t>(row * columns + column)]);
  }
  T* data() const { return device.data(); }
  // From the device to the host; what is beyond the rows must still be NaN.
  void fetch() {
    const std::vector<T> all = device.to_host();
    host.resize(static_cast<size_t>(rows * columns));
    for (int64_t r = 0; r < rows + 2; ++r)
      for (int64_t c = 0; c < stride; ++c) {
        const T value = all[static_cast<size_t>(r * stride + c)];
        if (r < rows && c < columns)
          host[static_cast<size_t>(r * columns + c)] = value;
        else
          ASSERT_TRUE(std::isnan(static_cast<float>(value))) << "written beyond a row: " << r << ", " << c;
      }
  }

  void set(std::vector<T> values) {
    host = std::move(values);
    device.set(padded());
  }

  std::vector<T> host;
  int64_t rows, columns, stride;
  DeviceArray<T> device;

 private:
  std::vector<T> padded() const {
    std::vector<T> all(static_cast<size_t>((rows + 2) * stride), T(std::numeric_limits<float>::quiet_NaN()));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        all[static_cast<size_t>(r * stride + c)] = host[static_cast<size_t>(r * columns + c)];
    return all;
  }
};

// Whole numbers from -limit to limit, in units of `unit`, a power of two.
inline Matrix<bf16> integers(int64_t rows, int64_t columns, int64_t padding, int limit, uint64_t seed,
                             float unit = 1) {
  std::vector<bf16> values = random_integers<bf16>(rows * columns, limit, seed);
  for (bf16& value : values)
    value = bf16(static_cast<float>(value) * unit);
  return {std::move(values), rows, columns, padding};
}

// A product's operands, and its exact result.
struct Operands {
  Operands(Product product, const Case& s, int limit, float unit = 1)
      : product(product),
        size(s),
        a(a_k_major() ? integers(s.m, s.k, 8, limit, 1, unit) : integers(s.k, s.m, 8, limit, 1, unit)),
        b(b_k_major() ? integers(s.n, s.k, 16, limit, 2, unit) : integers(s.k, s.n, 16, limit, 2, unit)) {}
  // Other values, in the order in which the matrices are stored.
  void set(std::vector<bf16> new_a, std::vector<bf16> new_b) {
    a.set(std::move(new_a));
    b.set(std::move(new_b));
  }

  bool a_k_major() const { return product != Product::weight_gradient; }
  bool b_k_major() const { return product == Product::forward; }
  GemmArgs args() const {
    GemmArgs p;
    p.product = product;
    p.m = size.m, p.n = size.n, p.k = size.k;
    p.a = a.data(), p.b = b.data();
    p.a_stride = a.stride, p.b_stride = b.stride;
    p.tile = size.tile;
    p.splits = size.splits;
    return p;
  }
  // A B in fp64, exact for whole numbers.
  std::vector<double> exact() const {
    std::vector<double> wide_a(static_cast<size_t>(size.m * size.k)),
        wide_b(static_cast<size_t>(size.n * size.k));
    for (int64_t i = 0; i < size.m; ++i)
      for (int64_t l = 0; l < size.k; ++l)
        wide_a[i * size.k + l] = a_k_major() ? a(i, l) : a(l, i);
    for (int64_t j = 0; j < size.n; ++j)
      for (int64_t l = 0; l < size.k; ++l)
        wide_b[j * size.k + l] = b_k_major() ? b(j, l) : b(l, j);
    std::vector<double> c(static_cast<size_t>(size.m * size.n));
    for (int64_t i = 0; i < size.m; ++i)
      for (int64_t j = 0; j < size.n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < size.k; ++l)
          sum += wide_a[i * size.k + l] * wide_b[j * size.k + l];
        c[i * size.n + j] = sum;
      }
    return c;
  }

  Product product;
  Case size;
  Matrix<bf16> a, b;
};

// The workspace is exactly as large as asked for, so that its canaries see the next byte.
inline void run(const Engine& engine, const GemmArgs& args) {
  const DeviceArray<float> workspace(static_cast<int64_t>(engine.workspace_bytes(args) / sizeof(float)));
  engine.gemm(args, workspace.data(), nullptr);
  workspace.to_host();
}

inline void expect_equal(const Matrix<bf16>& c, const std::vector<double>& expected, const Case& s) {
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j)
      ASSERT_EQ(c(i, j), static_cast<float>(bf16(static_cast<float>(expected[i * s.n + j]))))
          << "row " << i << " column " << j << " of " << name_of(s);
}

inline void test_forward(const Engine& engine, const Case& s, bool with_bias) {
  const Operands x(Product::forward, s, 15);
  const Matrix<bf16> bias = integers(1, s.n, 8, 100, 3);
  Matrix<bf16> y(s.m, s.n, 24);
  GemmArgs args = x.args();
  args.c = y.data(), args.c_stride = y.stride;
  args.bias = with_bias ? bias.data() : nullptr;
  run(engine, args);
  y.fetch();
  std::vector<double> expected = x.exact();
  if (with_bias)
    for (int64_t i = 0; i < s.m * s.n; ++i)
      expected[i] += bias(0, i % s.n);
  expect_equal(y, expected, s);
}

inline void test_input_gradient(const Engine& engine, const Case& s) {
  const Operands x(Product::input_gradient, s, 15);
  Matrix<bf16> dx(s.m, s.n, 8);
  GemmArgs args = x.args();
  args.c = dx.data(), args.c_stride = dx.stride;
  run(engine, args);
  dx.fetch();
  expect_equal(dx, x.exact(), s);
}

inline void test_weight_gradient(const Engine& engine, const Case& s, bool with_sums) {
  const Operands x(Product::weight_gradient, s, 15);
  Matrix<float> dw(random_integers<float>(s.m * s.n, 1000, 4), s.m, s.n, 8);
  Matrix<float> dbias(random_integers<float>(s.m, 1000, 5), 1, s.m, 8);
  std::vector<double> expected = x.exact(), expected_sums(dbias.host.begin(), dbias.host.end());
  for (int64_t i = 0; i < s.m * s.n; ++i)
    expected[i] += dw.host[i];
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t l = 0; with_sums && l < s.k; ++l)
      expected_sums[i] += x.a(l, i);
  GemmArgs args = x.args();
  args.accumulator = dw.data(), args.c_stride = dw.stride;
  args.column_sums = with_sums ? dbias.data() : nullptr;
  run(engine, args);
  dw.fetch();
  dbias.fetch();
  for (int64_t i = 0; i < s.m; ++i) {
    ASSERT_EQ(dbias(0, i), expected_sums[i]) << "column sum " << i << " of " << name_of(s);
    for (int64_t j = 0; j < s.n; ++j)
      ASSERT_EQ(dw(i, j), expected[i * s.n + j]) << "row " << i << " column " << j << " of " << name_of(s);
  }
}

// ---- gelu

constexpr double exact_gelu_c = 0.79788456080286535588;
inline double exact_gelu(double x) {
  return x / (1 + std::exp(-2 * exact_gelu_c * (x + 0.044715 * x * x * x)));
}
inline double exact_gelu_derivative(double x) {
  const double s = 1 / (1 + std::exp(-2 * exact_gelu_c * (x + 0.044715 * x * x * x)));
  return s + 2 * x * s * (1 - s) * exact_gelu_c * (1 + 3 * 0.044715 * x * x);
}

// Half a unit of bf16 at x, and 2% of that for fp32's errors before.
inline double rounding(double x) {
  return x == 0 ? 0 : std::ldexp(1.02, std::ilogb(x) - 8);
}

// y must be gelu of the stored pre-activation; `pre` itself is exact or, with random numbers,
// within rounding.
inline void expect_gelu(const Matrix<bf16>& pre, const Matrix<bf16>& y) {
  for (int64_t i = 0; i < pre.rows; ++i)
    for (int64_t j = 0; j < pre.columns; ++j) {
      const double expected = exact_gelu(pre(i, j));
      ASSERT_NEAR(y(i, j), expected, rounding(expected) + 1e-30) << "gelu(" << pre(i, j) << ")";
    }
}

// Operands in units of 1/16, so that sums are exact in fp32, about 2 in size, and not bf16 numbers.
inline void test_gelu(const Engine& engine, const Case& s) {
  const Operands x(Product::forward, s, 15, 1 / 16.0f);
  const Matrix<bf16> bias = integers(1, s.n, 8, 15, 3, 1 / 16.0f);
  Matrix<bf16> pre(s.m, s.n, 8), y(s.m, s.n, 16), y_alone(s.m, s.n, 16), again(s.m, s.n, 8);
  GemmArgs args = x.args();
  args.c = y.data(), args.c_stride = y.stride;
  args.pre = pre.data(), args.pre_stride = pre.stride;
  args.bias = bias.data();
  args.gelu = true;
  run(engine, args);
  kernels::gelu_forward(pre.data(), pre.stride, again.data(), again.stride, s.m, s.n, nullptr);
  args.c = y_alone.data();
  args.pre = nullptr;
  run(engine, args);
  for (Matrix<bf16>* matrix : {&pre, &y, &y_alone, &again})
    matrix->fetch();
  std::vector<double> expected = x.exact();
  for (int64_t i = 0; i < s.m * s.n; ++i)
    expected[i] += bias(0, i % s.n);
  expect_equal(pre, expected, s);
  expect_gelu(pre, y);
  for (int64_t i = 0; i < s.m * s.n; ++i) {
    ASSERT_EQ(y.host[i].bits, y_alone.host[i].bits) << "without storing the pre-activation: " << i;
    ASSERT_EQ(y.host[i].bits, again.host[i].bits) << "recomputed from the pre-activation: " << i;
  }
}

inline void expect_gelu_gradient(const std::vector<double>& product, const Matrix<bf16>& pre,
                                 const Matrix<bf16>& dx, double error) {
  for (int64_t i = 0; i < dx.rows; ++i)
    for (int64_t j = 0; j < dx.columns; ++j) {
      const double exact = product[i * dx.columns + j];
      const double expected = exact * exact_gelu_derivative(pre(i, j));
      ASSERT_NEAR(dx(i, j), expected, rounding(expected) + 1e-6 * std::abs(exact) + error)
          << "gelu'(" << pre(i, j) << ") at " << i << ", " << j;
    }
}

inline void test_gelu_gradient(const Engine& engine, const Case& s) {
  const Operands x(Product::input_gradient, s, 15);
  Matrix<bf16> pre(random_normal<bf16>(s.m * s.n, 2, 6), s.m, s.n, 8), dx(s.m, s.n, 24);
  GemmArgs args = x.args();
  args.c = dx.data(), args.c_stride = dx.stride;
  args.factor_pre = pre.data(), args.pre_stride = pre.stride;
  run(engine, args);
  dx.fetch();
  expect_gelu_gradient(x.exact(), pre, dx, 0);
}

// ---- numbers that round

inline double norm_of_row(const Operands& x, int64_t i) {
  double sum = 0;
  for (int64_t l = 0; l < x.size.k; ++l)
    sum += double{x.a_k_major() ? x.a(i, l) : x.a(l, i)} * (x.a_k_major() ? x.a(i, l) : x.a(l, i));
  return std::sqrt(sum);
}

}  // namespace hearth::testing
