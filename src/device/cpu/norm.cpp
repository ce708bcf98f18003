// The residual stream and its layernorm.  Rows are independent; parameter gradients are partial sums over
// fixed blocks of rows, added in order.
#include <algorithm>
#include <cmath>

#include "device/cpu/cpu_ops.h"
#include "device/cpu/dropout_rows.h"

namespace hearth::cpu {

namespace {

// Rows of one task, and of one partial sum in the backward pass.
constexpr int64_t row_block = 32;
constexpr double nanoseconds_per_element = 0.3;

// out = residual + factor (branch + bias); factor null: 1.
template <class T>
[[gnu::always_inline]] inline void add_branch_row(const T* residual, const T* branch, const T* bias,
                                                  const float* factor, T* out, int64_t C) {
  if (!bias && !factor) {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      out[c] = rounded<T>(to_float(residual[c]) + to_float(branch[c]));
  } else if (!factor) {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      out[c] = rounded<T>(to_float(residual[c]) + (to_float(branch[c]) + to_float(bias[c])));
  } else if (!bias) {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      out[c] = rounded<T>(to_float(residual[c]) + factor[c] * to_float(branch[c]));
  } else {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      out[c] = rounded<T>(to_float(residual[c]) + factor[c] * (to_float(branch[c]) + to_float(bias[c])));
  }
}

template <class T>
[[gnu::always_inline]] inline void row_statistics(const T* x, int64_t C, float eps, float& mean,
                                                  float& rstd) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < C; ++c)
    sum += to_float(x[c]);
  const float m = sum / static_cast<float>(C);
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < C; ++c) {
    const float d = to_float(x[c]) - m;
    squares += d * d;
  }
  mean = m;
  rstd = 1.0f / std::sqrt(squares / static_cast<float>(C) + eps);
}

// normed = (x - mean) rstd weight + bias.  Used by the forward pass and by recomputation: equal bits.
template <class T>
[[gnu::always_inline]] inline void normalise_row(const T* x, float mean, float rstd, const T* weight,
                                                 const T* bias, T* normed, int64_t C) {
  if (bias) {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      normed[c] = rounded<T>((to_float(x[c]) - mean) * rstd * to_float(weight[c]) + to_float(bias[c]));
  } else {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      normed[c] = rounded<T>((to_float(x[c]) - mean) * rstd * to_float(weight[c]));
  }
}

template <class T>
struct Forward {
  Rows<T> residual, branch, residual_out, normed;
  const T* branch_bias;
  const T* weight;
  const T* bias;
  float* mean;
  float* rstd;
  float eps;
  int64_t C;
  DropoutRows dropout;
};

template <class T>
[[gnu::always_inline]] inline void forward_rows(const Forward<T>& p, int64_t begin, int64_t end,
                                                float* factor) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = p.residual[r];
    if (p.branch) {
      if (p.dropout.active) p.dropout.factors(r, factor);
      add_branch_row(x, p.branch[r], p.branch_bias, p.dropout.active ? factor : nullptr, p.residual_out[r],
                     p.C);
      x = p.residual_out[r];
    }
    if (!p.weight) continue;
    row_statistics(x, p.C, p.eps, p.mean[r], p.rstd[r]);
    normalise_row(x, p.mean[r], p.rstd[r], p.weight, p.bias, p.normed[r], p.C);
  }
}

template <class T>
struct Backward {
  Rows<T> d_normed, d_residual, x, d_branch;
  const T* weight;
  const float* mean;
  const float* rstd;
  bool accumulate;
  bool copy_branch;  // d_branch is other memory than d_residual
  bool sum_branch_bias;
  int64_t C;
  DropoutRows dropout;
};

// d_residual = [d_residual +] rstd (g - mean(g) - x^ mean(g x^)) with g = d_normed weight, x^ = (x - mean)
// rstd; adds to the sums of d_normed x^ and of d_normed.
template <class T>
[[gnu::always_inline]] inline void norm_backward_row(const T* dy, const T* x, const T* weight, float mean,
                                                     float rstd, bool accumulate, T* d, float* weight_sum,
                                                     float* bias_sum, int64_t C) {
  float g_sum = 0, gx_sum = 0;
#pragma omp simd reduction(+ : g_sum, gx_sum)
  for (int64_t c = 0; c < C; ++c) {
    const float x_hat = (to_float(x[c]) - mean) * rstd;
    const float dyc = to_float(dy[c]);
    const float g = dyc * to_float(weight[c]);
    g_sum += g;
    gx_sum += g * x_hat;
    weight_sum[c] += dyc * x_hat;
    bias_sum[c] += dyc;
  }
  const float g_mean = g_sum / static_cast<float>(C);
  const float gx_mean = gx_sum / static_cast<float>(C);
  if (accumulate) {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c) {
      const float x_hat = (to_float(x[c]) - mean) * rstd;
      const float g = to_float(dy[c]) * to_float(weight[c]);
      d[c] = rounded<T>(to_float(d[c]) + rstd * (g - g_mean - x_hat * gx_mean));
    }
  } else {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c) {
      const float x_hat = (to_float(x[c]) - mean) * rstd;
      const float g = to_float(dy[c]) * to_float(weight[c]);
      d[c] = rounded<T>(rstd * (g - g_mean - x_hat * gx_mean));
    }
  }
}

// d_branch = factor d (factor null: 1)
template <class T>
[[gnu::always_inline]] inline void branch_row(const T* d, const float* factor, T* d_branch, int64_t C) {
  if (factor) {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      d_branch[c] = rounded<T>(to_float(d[c]) * factor[c]);
  } else {
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      d_branch[c] = d[c];
  }
}

// sums: [3, C] of this block of rows: d_weight | d_bias | d_branch_bias.
template <class T>
[[gnu::always_inline]] inline void backward_rows(const Backward<T>& p, int64_t begin, int64_t end,
                                                 float* sums, float* factor) {
  float* branch_sum = sums + 2 * p.C;
  std::fill(sums, sums + 3 * p.C, 0.0f);
  for (int64_t r = begin; r < end; ++r) {
    T* d = p.d_residual[r];
    if (p.d_normed)
      norm_backward_row(p.d_normed[r], p.x[r], p.weight, p.mean[r], p.rstd[r], p.accumulate, d, sums,
                        sums + p.C, p.C);
    if (p.copy_branch) {
      if (p.dropout.active) p.dropout.factors(r, factor);
      branch_row(d, p.dropout.active ? factor : nullptr, p.d_branch[r], p.C);
    }
    if (p.sum_branch_bias) {
      const T* branch = p.d_branch[r];
#pragma omp simd
      for (int64_t c = 0; c < p.C; ++c)
        branch_sum[c] += to_float(branch[c]);
    }
  }
}

// target += sum over blocks of partial[block, :], in order.
[[gnu::always_inline]] inline void add_partials(const float* partial, int64_t blocks, int64_t block_stride,
                                                int64_t C, float* total, float* target) {
  std::fill(total, total + C, 0.0f);
  for (int64_t b = 0; b < blocks; ++b) {
    const float* row = partial + b * block_stride;
#pragma omp simd
    for (int64_t c = 0; c < C; ++c)
      total[c] += row[c];
  }
#pragma omp simd
  for (int64_t c = 0; c < C; ++c)
    target[c] += total[c];
}

}  // namespace

void CpuOps::residual_norm_forward(const ResidualNorm& p) {
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
  with_compute_type(p.residual.dtype, [&]<class T>(T) {
    const Forward<T> f{Rows<T>(p.residual),
                       Rows<T>(p.branch),
                       Rows<T>(p.residual_out),
                       Rows<T>(p.normed),
                       data_or_null<T>(p.branch_bias),
                       data_or_null<T>(p.weight),
                       data_or_null<T>(p.bias),
                       data_or_null<float>(p.mean),
                       data_or_null<float>(p.rstd),
                       static_cast<float>(p.eps),
                       C,
                       DropoutRows(p.branch ? p.dropout : Dropout{}, step_, C)};
    parallel(N, row_block, static_cast<double>(C) * nanoseconds_per_element, [&](int64_t begin, int64_t end) {
      float* factor = thread_scratch(C);
      simd(
          isa_, [ f, begin, end, factor ](auto)
                    __attribute__((always_inline)) { forward_rows(f, begin, end, factor); });
    });
  });
}

void CpuOps::norm_apply(const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                        const Tensor& bias, const Tensor& normed) {
  const int64_t N = x.dim(0), C = x.dim(1);
  expect("x", x, {N, C});
  expect("mean", mean, {N});
  expect("rstd", rstd, {N});
  expect("weight", weight, {C});
  expect_if_present("bias", bias, {C});
  expect("normed", normed, {N, C});
  with_compute_type(x.dtype, [&]<class T>(T) {
    const Rows<T> in(x), out(normed);
    const T* w = weight.as<T>();
    const T* b = data_or_null<T>(bias);
    const float* means = mean.as<float>();
    const float* rstds = rstd.as<float>();
    parallel(N, row_block, static_cast<double>(C) * nanoseconds_per_element, [&](int64_t begin, int64_t end) {
      simd(
          isa_, [=](auto) __attribute__((always_inline)) {
            for (int64_t r = begin; r < end; ++r)
              normalise_row(in[r], means[r], rstds[r], w, b, out[r], C);
          });
    });
  });
}

void CpuOps::residual_norm_backward(const ResidualNormBackward& p) {
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

  const int64_t blocks = (N + row_block - 1) / row_block;
  partial_.resize(std::max(partial_.size(), static_cast<size_t>(blocks * 3 * C)));
  with_compute_type(p.d_residual.dtype, [&]<class T>(T) {
    const Backward<T> f{Rows<T>(p.d_normed),
                        Rows<T>(p.d_residual),
                        Rows<T>(p.x),
                        Rows<T>(p.d_branch),
                        data_or_null<T>(p.weight),
                        data_or_null<float>(p.mean),
                        data_or_null<float>(p.rstd),
                        p.accumulate,
                        p.d_branch && !same_memory,
                        static_cast<bool>(p.d_branch_bias),
                        C,
                        DropoutRows(p.d_branch ? p.dropout : Dropout{}, step_, C)};
    parallel(N, row_block, static_cast<double>(C) * 2 * nanoseconds_per_element,
             [&](int64_t begin, int64_t end) {
               float* sums = partial_.data() + begin / row_block * 3 * C;
               float* factor = thread_scratch(C);
               simd(
                   isa_, [ f, begin, end, sums, factor ](auto)
                             __attribute__((always_inline)) { backward_rows(f, begin, end, sums, factor); });
             });
  });
  const Tensor targets[3] = {p.d_normed ? p.d_weight : Tensor{}, p.d_normed ? p.d_bias : Tensor{},
                             p.d_branch_bias};
  for (int i = 0; i < 3; ++i)
    if (targets[i]) reduce_partials(partial_.data() + i * C, blocks, 3 * C, C, targets[i].as<float>());
}

// target[c] += sum over blocks of partial[block * stride + c], in the order of the blocks.
void CpuOps::reduce_partials(const float* partial, int64_t blocks, int64_t stride, int64_t C, float* target) {
  constexpr int64_t channels = 128;
  parallel(C, channels, static_cast<double>(blocks) * 0.1, [&](int64_t begin, int64_t end) {
    simd(
        isa_, [=](auto) __attribute__((always_inline)) {
          float total[channels];
          add_partials(partial + begin, blocks, stride, end - begin, total, target + begin);
        });
  });
}

}  // namespace hearth::cpu
