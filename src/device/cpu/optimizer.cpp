// AdamW, and the sums behind the gradient norm and the loss.
#include <algorithm>
#include <cmath>

#include "device/cpu/cpu_ops.h"

namespace hearth::cpu {

namespace {

// Elements of one task and of one partial sum.
constexpr int64_t sum_block = 32 * 1024;
constexpr int64_t adamw_chunk = 16 * 1024;

template <class T>
[[gnu::always_inline]] inline double sum_span(const T* x, int64_t count, bool squares) {
  double sum = 0;
  if (squares) {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) {
      const double value = to_float(x[i]);
      sum += value * value;
    }
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i)
      sum += static_cast<double>(to_float(x[i]));
  }
  return sum;
}

// The scalars of one update, in the form that the loop uses.
struct AdamWScalars {
  float clip_scale, beta1, beta2, one_minus_beta1, one_minus_beta2, rate, inverse_correction1,
      inverse_correction2, eps;
};

AdamWScalars adamw_scalars(const AdamWConfig& config, const StepParams& step) {
  return {static_cast<float>(step.clip_scale),
          static_cast<float>(config.beta1),
          static_cast<float>(config.beta2),
          static_cast<float>(1 - config.beta1),  // 1 - float(beta) would lose digits
          static_cast<float>(1 - config.beta2),
          static_cast<float>(step.learning_rate),
          static_cast<float>(1 / step.bias_correction1),
          static_cast<float>(1 / step.bias_correction2),
          static_cast<float>(config.eps)};
}

// `shrink_by` is lr * weight_decay.
[[gnu::always_inline]] inline float adamw_element(const AdamWScalars& s, float shrink_by, float gradient,
                                                  float master, float& moment1, float& moment2) {
  const float g = gradient * s.clip_scale;
  moment1 = s.beta1 * moment1 + s.one_minus_beta1 * g;
  moment2 = s.beta2 * moment2 + s.one_minus_beta2 * (g * g);
  const float denominator = std::sqrt(moment2 * s.inverse_correction2) + s.eps;
  const float direction = moment1 * s.inverse_correction1 / denominator;
  return master - (s.rate * direction + shrink_by * master);
}

// weight: null, or where the rounded master goes.
template <class T>
[[gnu::always_inline]] inline void adamw_span(AdamWScalars s, float shrink_by, int64_t count, float* master,
                                              float* moment1, float* moment2, float* gradient, T* weight) {
  if (weight) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float updated = adamw_element(s, shrink_by, gradient[i], master[i], moment1[i], moment2[i]);
      master[i] = updated;
      weight[i] = rounded<T>(updated);
      gradient[i] = 0;
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      master[i] = adamw_element(s, shrink_by, gradient[i], master[i], moment1[i], moment2[i]);
      gradient[i] = 0;
    }
  }
}

// Elements [begin, end) of one segment.
void adamw_piece(Isa isa, const AdamWScalars& scalars, double weight_decay, const AdamWSegment& segment,
                 int64_t begin, int64_t end) {
  const float shrink_by = segment.decay ? static_cast<float>(scalars.rate * weight_decay) : 0.0f;
  float* master = segment.master.as<float>() + begin;
  float* moment1 = segment.moment1.as<float>() + begin;
  float* moment2 = segment.moment2.as<float>() + begin;
  float* gradient = segment.grad.as<float>() + begin;
  with_compute_type(segment.weight ? segment.weight.dtype : DType::f32, [&]<class T>(T) {
    T* weight = segment.weight ? segment.weight.as<T>() + begin : nullptr;
    simd(
        isa, [=](auto) __attribute__((always_inline)) {
          adamw_span(scalars, shrink_by, end - begin, master, moment1, moment2, gradient, weight);
        });
  });
}

}  // namespace

// The sum of x or x^2: blocks of fixed size in f64, added in order.
double CpuOps::sum_blocks(const Tensor& x, bool squares) {
  check(x.contiguous(), "sum of a tensor with gaps");
  const int64_t count = x.elements();
  partial_sums_.assign(static_cast<size_t>((count + sum_block - 1) / sum_block), 0.0);
  with_compute_type(x.dtype, [&]<class T>(T) {
    const T* data = x.as<T>();
    parallel(count, sum_block, 0.15, [&](int64_t begin, int64_t end) {
      double* block = &partial_sums_[static_cast<size_t>(begin / sum_block)];
      simd(
          isa_, [=](auto) __attribute__((always_inline)) {
            *block = sum_span(data + begin, end - begin, squares);
          });
    });
  });
  double total = 0;
  for (double block : partial_sums_)
    total += block;
  return total;
}

void CpuOps::sum_of_squares(const Tensor& x, const Tensor& total) {
  expect("total", total, {1});
  *total.as<double>() += sum_blocks(x, true);
}

void CpuOps::sum(const Tensor& x, const Tensor& total) {
  expect("total", total, {1});
  *total.as<double>() += sum_blocks(x, false);
}

// All segments as one line of elements, cut into equal chunks.
void CpuOps::adamw(std::span<const AdamWSegment> segments, const AdamWConfig& config) {
  check(step_ != nullptr, "adamw needs the step's scalars: call set_step_params first");
  segment_begin_.clear();
  int64_t count = 0;
  for (const AdamWSegment& s : segments) {
    const Shape length = {s.master.elements()};
    expect("master", s.master, length);
    expect("moment1", s.moment1, length);
    expect("moment2", s.moment2, length);
    expect("grad", s.grad, length);
    expect_if_present("weight", s.weight, length);
    segment_begin_.push_back(count);
    count += length.elements();
  }
  const AdamWScalars scalars = adamw_scalars(config, *step_);
  parallel(count, adamw_chunk, 0.7, [&](int64_t begin, int64_t end) {
    auto at = static_cast<size_t>(std::upper_bound(segment_begin_.begin(), segment_begin_.end(), begin) -
                                  segment_begin_.begin() - 1);
    for (; at < segments.size() && segment_begin_[at] < end; ++at) {
      const int64_t first = segment_begin_[at];
      const int64_t length = segments[at].master.elements();
      adamw_piece(isa_, scalars, config.weight_decay, segments[at], std::max<int64_t>(begin - first, 0),
                  std::min(end - first, length));
    }
  });
}

}  // namespace hearth::cpu
