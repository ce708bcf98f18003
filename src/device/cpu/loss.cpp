// Cross-entropy in two halves.  Rows are independent.
#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/cpu_ops.h"
#include "device/cpu/math.h"

namespace hearth::cpu {

namespace {

// Rows of one task: about this many elements.
int64_t rows_per_task(int64_t V) {
  return std::max<int64_t>(1, 8192 / V);
}

// The column of the target of a row, or -1 when this shard does not have it.
int64_t target_column(int32_t target, const VocabShard& shard) {
  const int64_t column = target - shard.start;
  return target >= 0 && column >= 0 && column < shard.valid ? column : -1;
}

template <class T>
[[gnu::always_inline]] inline void row_max_and_sum(const T* x, int64_t valid, float& largest, float& sum) {
  float m = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : m)
  for (int64_t v = 0; v < valid; ++v)
    m = std::max(m, to_float(x[v]));
  float s = 0;
#pragma omp simd reduction(+ : s)
  for (int64_t v = 0; v < valid; ++v)
    s += exp_fast(to_float(x[v]) - m);
  largest = m;
  sum = s;
}

template <class T>
[[gnu::always_inline]] inline void gradient_row(const T* x, T* d, int64_t V, int64_t valid, float largest,
                                                float scale) {
#pragma omp simd
  for (int64_t v = 0; v < valid; ++v)
    d[v] = rounded<T>(exp_fast(to_float(x[v]) - largest) * scale);
  for (int64_t v = valid; v < V; ++v)
    d[v] = T{};
}

void expect_logits(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                   const Tensor& stats) {
  const int64_t N = logits.dim(0), V = logits.dim(1);
  expect("logits", logits, {N, V});
  expect("targets", targets, {N});
  expect("stats", stats, {3, N});
  check(shard.valid >= 0 && shard.valid <= V, shard.valid, " valid columns of ", V);
}

}  // namespace

void CpuOps::cross_entropy_statistics(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                                      const Tensor& stats) {
  expect_logits(logits, targets, shard, stats);
  const int64_t N = logits.dim(0), V = logits.dim(1);
  const int32_t* ids = targets.as<int32_t>();
  const Rows<float> out(stats);
  with_compute_type(logits.dtype, [&]<class T>(T) {
    const Rows<T> rows(logits);
    parallel(N, rows_per_task(V), static_cast<double>(V) * 0.4, [&](int64_t begin, int64_t end) {
      simd(
          isa_, [=](auto) __attribute__((always_inline)) {
            for (int64_t r = begin; r < end; ++r)
              row_max_and_sum(rows[r], shard.valid, out[0][r], out[1][r]);
          });
      for (int64_t r = begin; r < end; ++r) {
        const int64_t target = target_column(ids[r], shard);
        out[2][r] = target >= 0 ? to_float(rows[r][target]) : 0.0f;
      }
    });
  });
}

void CpuOps::cross_entropy_rescale(const Tensor& stats, const Tensor& global_max) {
  const int64_t N = stats.dim(1);
  expect("stats", stats, {3, N});
  expect("global_max", global_max, {N});
  const Rows<float> rows(stats);
  const float* largest = global_max.as<float>();
  for (int64_t r = 0; r < N; ++r) {
    rows[1][r] *= std::exp(rows[0][r] - largest[r]);
    rows[0][r] = largest[r];
  }
}

void CpuOps::cross_entropy_finish(const Tensor& logits, const Tensor& targets, const VocabShard& shard,
                                  const Tensor& stats, const Tensor& losses, const Tensor& dlogits) {
  expect_logits(logits, targets, shard, stats);
  const int64_t N = logits.dim(0), V = logits.dim(1);
  expect("losses", losses, {N});
  expect_if_present("dlogits", dlogits, logits.shape);
  check(!dlogits || step_ != nullptr, "dlogits need the step's scalars: call set_step_params first");
  const int32_t* ids = targets.as<int32_t>();
  const Rows<float> s(stats);
  float* loss = losses.as<float>();
  for (int64_t r = 0; r < N; ++r)
    loss[r] = ids[r] < 0 ? 0.0f : std::log(s[1][r]) + (s[0][r] - s[2][r]);
  if (!dlogits) return;
  const float loss_scale = static_cast<float>(step_->loss_scale);
  with_compute_type(logits.dtype, [&]<class T>(T) {
    const Rows<T> x(logits), d(dlogits);
    parallel(N, rows_per_task(V), static_cast<double>(V) * 0.3, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t valid = ids[r] < 0 ? 0 : shard.valid;
        const int64_t target = target_column(ids[r], shard);
        const float largest = s[0][r];
        const float scale = loss_scale / s[1][r];
        // The target's own gradient rounds once, so it is computed before its logit may be overwritten.
        const float at_target =
            target < 0 ? 0.0f : (std::exp(to_float(x[r][target]) - largest) / s[1][r] - 1.0f) * loss_scale;
        const T* from = x[r];
        T* to = d[r];
        simd(
            isa_, [=](auto)
                      __attribute__((always_inline)) { gradient_row(from, to, V, valid, largest, scale); });
        if (target >= 0) to[target] = rounded<T>(at_target);
      }
    });
  });
}

}  // namespace hearth::cpu
