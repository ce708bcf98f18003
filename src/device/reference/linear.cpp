// Linear layers and GELU.
#include "device/reference/reference_ops.h"
#include "device/reference/view.h"

namespace hearth::reference {

// GELU in its tanh form (Hendrycks and Gimpel 2016): x/2 (1 + tanh u) with u = sqrt(2/pi) (x + a x^3).
constexpr double gelu_a = 0.044715;
constexpr double sqrt_2_over_pi = 0.79788456080286535588;

static double gelu(double x) {
  const double u = sqrt_2_over_pi * (x + gelu_a * x * x * x);
  return x / 2 * (1 + std::tanh(u));
}

static double gelu_derivative(double x) {
  const double u = sqrt_2_over_pi * (x + gelu_a * x * x * x);
  const double du = sqrt_2_over_pi * (1 + 3 * gelu_a * x * x);
  const double tanh_u = std::tanh(u);
  return (1 + tanh_u) / 2 + x / 2 * (1 - tanh_u * tanh_u) * du;
}

// y = x w^T + bias
template <class Compute>
static void affine(View<Compute> x, View<Compute> w, View<Compute> bias, View<Compute> y) {
  const int64_t N = x.dim(0), K = x.dim(1), O = w.dim(0);
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t o = 0; o < O; ++o) {
      double sum = bias ? bias(o) : 0.0;
      for (int64_t k = 0; k < K; ++k)
        sum += x(n, k) * w(o, k);
      y(n, o) = sum;
    }
  }
}

// y = gelu(pre)
template <class Compute>
static void apply_gelu(View<Compute> pre, View<Compute> y) {
  for (int64_t n = 0; n < pre.dim(0); ++n)
    for (int64_t o = 0; o < pre.dim(1); ++o)
      y(n, o) = gelu(pre(n, o));
}

// dx = dy w, times gelu'(pre) when x = gelu(pre)
template <class Compute>
static void backward_input(View<Compute> dy, View<Compute> w, View<Compute> pre, View<Compute> dx) {
  const int64_t N = dy.dim(0), O = dy.dim(1), K = w.dim(1);
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t k = 0; k < K; ++k) {
      double sum = 0;
      for (int64_t o = 0; o < O; ++o)
        sum += dy(n, o) * w(o, k);
      dx(n, k) = pre ? sum * gelu_derivative(pre(n, k)) : sum;
    }
  }
}

// dw += dy^T x
template <class Compute>
static void backward_weight(View<Compute> dy, View<Compute> x, View<Master<Compute>> dw) {
  const int64_t N = dy.dim(0), O = dy.dim(1), K = x.dim(1);
  for (int64_t o = 0; o < O; ++o) {
    for (int64_t k = 0; k < K; ++k) {
      double sum = 0;
      for (int64_t n = 0; n < N; ++n)
        sum += dy(n, o) * x(n, k);
      dw(o, k) += sum;
    }
  }
}

// dbias += column sums of dy
template <class Compute>
static void backward_bias(View<Compute> dy, View<Master<Compute>> dbias) {
  for (int64_t o = 0; o < dy.dim(1); ++o) {
    double sum = 0;
    for (int64_t n = 0; n < dy.dim(0); ++n)
      sum += dy(n, o);
    dbias(o) += sum;
  }
}

void ReferenceOps::linear_forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                                  Activation activation, const Tensor& pre) {
  const int64_t N = x.dim(0), K = x.dim(1), O = w.dim(0);
  expect("x", x, {N, K});
  expect("w", w, {O, K});
  expect_if_present("bias", bias, {O});
  expect("y", y, {N, O});
  expect_if_present("pre", pre, {N, O});
  with_scalar(x.dtype, [&]<class Compute>(Compute) {
    if (activation == Activation::none) return affine<Compute>(x, w, bias, y);
    const Tensor& rounded = pre ? pre : y;  // the activation sees the rounded value, stored or not
    affine<Compute>(x, w, bias, rounded);
    apply_gelu<Compute>(rounded, y);
  });
}

void ReferenceOps::linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx,
                                         const Tensor& pre) {
  const int64_t N = dy.dim(0), O = dy.dim(1), K = w.dim(1);
  expect("dy", dy, {N, O});
  expect("w", w, {O, K});
  expect("dx", dx, {N, K});
  expect_if_present("pre", pre, {N, K});
  with_scalar(dy.dtype, [&]<class Compute>(Compute) { backward_input<Compute>(dy, w, pre, dx); });
}

void ReferenceOps::linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw,
                                          const Tensor& dbias) {
  const int64_t N = dy.dim(0), O = dy.dim(1), K = x.dim(1);
  expect("dy", dy, {N, O});
  expect("x", x, {N, K});
  expect("dw", dw, {O, K});
  expect_if_present("dbias", dbias, {O});
  with_scalar(dy.dtype, [&]<class Compute>(Compute) {
    backward_weight<Compute>(dy, x, dw);
    if (dbias) backward_bias<Compute>(dy, dbias);
  });
}

void ReferenceOps::gelu_forward(const Tensor& pre, const Tensor& y) {
  expect("pre", pre, {pre.dim(0), pre.dim(1)});
  expect("y", y, pre.shape);
  with_scalar(pre.dtype, [&]<class Compute>(Compute) { apply_gelu<Compute>(pre, y); });
}

}  // namespace hearth::reference
