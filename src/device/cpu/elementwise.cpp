// Element-wise operations on whole tensors.
#include <algorithm>
#include <cstring>

#include "device/cpu/cpu_ops.h"

namespace hearth::cpu {

// Elements of one task.
constexpr int64_t grain = 64 * 1024;
constexpr double nanoseconds_per_element = 0.1;

template <class From, class To>
[[gnu::always_inline]] inline void cast_span(const From* from, To* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i)
    to[i] = rounded<To>(to_float(from[i]));
}

void CpuOps::add(const Tensor& a, const Tensor& b, const Tensor& out) {
  check(a.shape == b.shape && a.shape == out.shape, "add of ", a.shape, " and ", b.shape, " to ", out.shape);
  if (!(a.contiguous() && b.contiguous() && out.contiguous())) {
    check(a.shape.rank() == 2, "add of tensors with gaps and shape ", a.shape);
    for (int64_t r = 0; r < a.dim(0); ++r)
      add(a.rows(r, 1), b.rows(r, 1), out.rows(r, 1));
    return;
  }
  with_compute_type(a.dtype, [&]<class T>(T) {
    const T* left = a.as<T>();
    const T* right = b.as<T>();
    T* sum = out.as<T>();
    parallel(a.elements(), grain, nanoseconds_per_element, [&](int64_t begin, int64_t end) {
      simd(
          isa_, [=](auto) __attribute__((always_inline)) {
#pragma omp simd
            for (int64_t i = begin; i < end; ++i)
              sum[i] = rounded<T>(to_float(left[i]) + to_float(right[i]));
          });
    });
  });
}

void CpuOps::cast(const Tensor& from, const Tensor& to) {
  check(from.elements() == to.elements(), "cast of ", from.shape, " to ", to.shape);
  check(from.contiguous() && to.contiguous(), "cast of tensors with gaps");
  if (from.dtype == DType::f64 || to.dtype == DType::f64) return cast_f64(from, to);
  with_compute_type(from.dtype, [&]<class From>(From) {
    with_compute_type(to.dtype, [&]<class To>(To) {
      const From* source = from.as<From>();
      To* target = to.as<To>();
      parallel(from.elements(), grain, nanoseconds_per_element, [&](int64_t begin, int64_t end) {
        simd(
            isa_, [=](auto) __attribute__((always_inline)) {
              cast_span(source + begin, target + begin, end - begin);
            });
      });
    });
  });
}

// Not in any step: plain loops.
void CpuOps::cast_f64(const Tensor& from, const Tensor& to) {
  const int64_t count = from.elements();
  if (from.dtype == DType::f64 && to.dtype == DType::f64) return copy(from, to);
  if (from.dtype == DType::f64) {
    with_compute_type(to.dtype, [&]<class To>(To) {
      for (int64_t i = 0; i < count; ++i)
        to.as<To>()[i] = rounded<To>(static_cast<float>(from.as<double>()[i]));
    });
  } else {
    with_compute_type(from.dtype, [&]<class From>(From) {
      for (int64_t i = 0; i < count; ++i)
        to.as<double>()[i] = to_float(from.as<From>()[i]);
    });
  }
}

void CpuOps::copy(const Tensor& from, const Tensor& to) {
  check(from.dtype == to.dtype && from.elements() == to.elements(), "copy of ", from.shape, " to ", to.shape);
  check(from.contiguous() && to.contiguous(), "copy of tensors with gaps");
  const auto* source = static_cast<const std::byte*>(from.data);
  auto* target = static_cast<std::byte*>(to.data);
  parallel(from.bytes(), grain * 4, nanoseconds_per_element / 4, [&](int64_t begin, int64_t end) {
    std::memmove(target + begin, source + begin, static_cast<size_t>(end - begin));
  });
}

void CpuOps::fill_zero(const Tensor& x) {
  check(x.contiguous(), "fill of a tensor with gaps");
  auto* target = static_cast<std::byte*>(x.data);
  parallel(x.bytes(), grain * 4, nanoseconds_per_element / 4, [&](int64_t begin, int64_t end) {
    std::memset(target + begin, 0, static_cast<size_t>(end - begin));
  });
}

}  // namespace hearth::cpu
