// The residual stream and its layernorm (Ba, Kiros and Hinton 2016), fused with what a row-parallel linear
// leaves undone: bias, dropout and the residual sum.
#include "device/dropout.h"
#include "device/reference/reference_ops.h"
#include "device/reference/view.h"

namespace hearth::reference {

// residual_out = residual + dropout(branch + bias)
template <class Compute>
static void add_branch(View<Compute> residual, View<Compute> branch, View<Compute> bias,
                       const DropoutMask& mask, View<Compute> residual_out) {
  for (int64_t n = 0; n < branch.dim(0); ++n)
    for (int64_t c = 0; c < branch.dim(1); ++c)
      residual_out(n, c) = residual(n, c) + mask.factor(n, c) * (branch(n, c) + (bias ? bias(c) : 0.0));
}

// mean and 1 / standard deviation of each row
template <class Compute>
static void statistics(View<Compute> x, double eps, View<Master<Compute>> mean, View<Master<Compute>> rstd) {
  const int64_t N = x.dim(0), C = x.dim(1);
  for (int64_t n = 0; n < N; ++n) {
    double sum = 0;
    for (int64_t c = 0; c < C; ++c)
      sum += x(n, c);
    const double row_mean = sum / C;
    double squares = 0;
    for (int64_t c = 0; c < C; ++c)
      squares += (x(n, c) - row_mean) * (x(n, c) - row_mean);
    mean(n) = row_mean;
    rstd(n) = 1 / std::sqrt(squares / C + eps);
  }
}

// normed = (x - mean) rstd weight + bias
template <class Compute>
static void normalise(View<Compute> x, View<Master<Compute>> mean, View<Master<Compute>> rstd,
                      View<Compute> weight, View<Compute> bias, View<Compute> normed) {
  for (int64_t n = 0; n < x.dim(0); ++n)
    for (int64_t c = 0; c < x.dim(1); ++c)
      normed(n, c) = (x(n, c) - mean(n)) * rstd(n) * weight(c) + (bias ? bias(c) : 0.0);
}

// With x^ = (x - mean) rstd:  d_weight += sum over rows of d_normed x^,  d_bias += sum of d_normed
template <class Compute>
static void backward_parameters(View<Compute> d_normed, View<Compute> x, View<Master<Compute>> mean,
                                View<Master<Compute>> rstd, View<Master<Compute>> d_weight,
                                View<Master<Compute>> d_bias) {
  for (int64_t c = 0; c < x.dim(1); ++c) {
    double weight_sum = 0, bias_sum = 0;
    for (int64_t n = 0; n < x.dim(0); ++n) {
      weight_sum += d_normed(n, c) * (x(n, c) - mean(n)) * rstd(n);
      bias_sum += d_normed(n, c);
    }
    d_weight(c) += weight_sum;
    if (d_bias) d_bias(c) += bias_sum;
  }
}

// With g = d_normed weight:  d_residual = [d_residual +] rstd (g - mean(g) - x^ mean(g x^))
template <class Compute>
static void backward_input(View<Compute> d_normed, View<Compute> x, View<Master<Compute>> mean,
                           View<Master<Compute>> rstd, View<Compute> weight, bool accumulate,
                           View<Compute> d_residual) {
  const int64_t N = x.dim(0), C = x.dim(1);
  for (int64_t n = 0; n < N; ++n) {
    const auto g = [&](int64_t c) { return d_normed(n, c) * weight(c); };
    const auto x_hat = [&](int64_t c) { return (x(n, c) - mean(n)) * rstd(n); };
    double g_mean = 0, gx_mean = 0;
    for (int64_t c = 0; c < C; ++c) {
      g_mean += g(c) / C;
      gx_mean += g(c) * x_hat(c) / C;
    }
    for (int64_t c = 0; c < C; ++c) {
      const double dx = rstd(n) * (g(c) - g_mean - x_hat(c) * gx_mean);
      d_residual(n, c) = (accumulate ? d_residual(n, c) : 0.0) + dx;
    }
  }
}

// d_branch = dropout mask applied to d_residual
template <class Compute>
static void backward_dropout(View<Compute> d_residual, const DropoutMask& mask, View<Compute> d_branch) {
  for (int64_t n = 0; n < d_residual.dim(0); ++n)
    for (int64_t c = 0; c < d_residual.dim(1); ++c)
      d_branch(n, c) = mask.factor(n, c) * d_residual(n, c);
}

// sums += column sums of d
template <class Compute>
static void add_column_sums(View<Compute> d, View<Master<Compute>> sums) {
  for (int64_t c = 0; c < d.dim(1); ++c) {
    double sum = 0;
    for (int64_t n = 0; n < d.dim(0); ++n)
      sum += d(n, c);
    sums(c) += sum;
  }
}

void ReferenceOps::residual_norm_forward(const ResidualNorm& p) {
  const int64_t N = p.residual.dim(0), C = p.residual.dim(1);
  expect("residual", p.residual, {N, C});
  expect_if_present("branch", p.branch, {N, C});
  expect_if_present("branch_bias", p.branch_bias, {C});
  if (p.branch) expect("residual_out", p.residual_out, {N, C});
  if (p.weight) {
    expect("weight", p.weight, {C});
    expect_if_present("bias", p.bias, {C});
    expect("normed", p.normed, {N, C});
    expect("mean", p.mean, {N});
    expect("rstd", p.rstd, {N});
  }
  const Tensor& x = p.branch ? p.residual_out : p.residual;
  with_scalar(p.residual.dtype, [&]<class Compute>(Compute) {
    if (p.branch) {
      const DropoutMask mask(p.dropout, step_, C);
      add_branch<Compute>(p.residual, p.branch, p.branch_bias, mask, p.residual_out);
    }
    if (p.weight) {
      statistics<Compute>(x, p.eps, p.mean, p.rstd);
      normalise<Compute>(x, p.mean, p.rstd, p.weight, p.bias, p.normed);
    }
  });
}

void ReferenceOps::norm_apply(const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                              const Tensor& bias, const Tensor& normed) {
  const int64_t N = x.dim(0), C = x.dim(1);
  expect("x", x, {N, C});
  expect("mean", mean, {N});
  expect("rstd", rstd, {N});
  expect("weight", weight, {C});
  expect_if_present("bias", bias, {C});
  expect("normed", normed, {N, C});
  with_scalar(x.dtype,
              [&]<class Compute>(Compute) { normalise<Compute>(x, mean, rstd, weight, bias, normed); });
}

void ReferenceOps::residual_norm_backward(const ResidualNormBackward& p) {
  const int64_t N = p.d_residual.dim(0), C = p.d_residual.dim(1);
  expect("d_residual", p.d_residual, {N, C});
  check(static_cast<bool>(p.d_normed) == static_cast<bool>(p.weight), "d_normed and weight come together");
  check(p.d_normed || p.accumulate, "without a norm and without accumulation there is no gradient");
  if (p.d_normed) {
    expect("d_normed", p.d_normed, {N, C});
    expect("x", p.x, {N, C});
    expect("mean", p.mean, {N});
    expect("rstd", p.rstd, {N});
    expect("weight", p.weight, {C});
    expect("d_weight", p.d_weight, {C});
    expect_if_present("d_bias", p.d_bias, {C});
  }
  expect_if_present("d_branch", p.d_branch, {N, C});
  expect_if_present("d_branch_bias", p.d_branch_bias, {C});
  check(p.d_branch || !p.d_branch_bias, "d_branch_bias without d_branch");
  const bool same_memory = p.d_branch.data == p.d_residual.data;
  check(!same_memory || p.dropout.probability == 0, "dropout would overwrite d_residual with d_branch");

  with_scalar(p.d_residual.dtype, [&]<class Compute>(Compute) {
    if (p.d_normed) {
      backward_parameters<Compute>(p.d_normed, p.x, p.mean, p.rstd, p.d_weight, p.d_bias);
      backward_input<Compute>(p.d_normed, p.x, p.mean, p.rstd, p.weight, p.accumulate, p.d_residual);
    }
    if (p.d_branch && !same_memory)
      backward_dropout<Compute>(p.d_residual, DropoutMask(p.dropout, step_, C), p.d_branch);
    if (p.d_branch_bias) add_column_sums<Compute>(p.d_branch, p.d_branch_bias);
  });
}

}  // namespace hearth::reference
