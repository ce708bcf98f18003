// Linear layers and GELU: products of gemm.h, with what follows applied to each tile while it is in cache.
#include <algorithm>

#include "device/cpu/cpu_ops.h"
#include "device/cpu/gemm.h"
#include "device/cpu/math.h"

namespace hearth::cpu {

namespace {

template <class T>
[[gnu::always_inline]] inline void gelu_span(const T* pre, T* y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i)
    y[i] = rounded<T>(gelu(to_float(pre[i])));
}

// out = rounded(sum + bias); bias null: 0; sum and out may be the same memory.
template <class T>
[[gnu::always_inline]] inline void store_span(const float* sum, const T* bias, T* out, int64_t count) {
  if (bias) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      out[i] = rounded<T>(sum[i] + to_float(bias[i]));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      out[i] = rounded<T>(sum[i]);
  }
}

// pre = rounded(sum + bias); y = gelu(pre), or nothing when y is null.
template <class T>
class ForwardStore final : public TileStore {
 public:
  ForwardStore(Isa isa, const T* bias, Rows<T> pre, Rows<T> y) : isa_(isa), bias_(bias), pre_(pre), y_(y) {}

  void store(const GemmTile& tile) const override {
    const T* bias = bias_ ? bias_ + tile.column : nullptr;
    simd(
        isa_, [ tile, bias, pre = pre_, y = y_ ](auto) __attribute__((always_inline)) {
          for (int64_t r = 0; r < tile.rows; ++r) {
            T* to = pre[tile.row + r] + tile.column;
            store_span(tile.sum + r * tile.stride, bias, to, tile.columns);
            if (y) gelu_span(to, y[tile.row + r] + tile.column, tile.columns);
          }
        });
  }

 private:
  Isa isa_;
  const T* bias_;
  Rows<T> pre_, y_;
};

// dx = rounded(sum * gelu'(pre)); pre null: rounded(sum).
template <class T>
class BackwardStore final : public TileStore {
 public:
  BackwardStore(Isa isa, Rows<T> pre, Rows<T> dx) : isa_(isa), pre_(pre), dx_(dx) {}

  void store(const GemmTile& tile) const override {
    simd(
        isa_, [ tile, pre = pre_, dx = dx_ ](auto) __attribute__((always_inline)) {
          for (int64_t r = 0; r < tile.rows; ++r) {
            const float* sum = tile.sum + r * tile.stride;
            T* to = dx[tile.row + r] + tile.column;
            if (!pre) {
              store_span<T>(sum, nullptr, to, tile.columns);
              continue;
            }
            const T* before = pre[tile.row + r] + tile.column;
#pragma omp simd
            for (int64_t i = 0; i < tile.columns; ++i)
              to[i] = rounded<T>(sum[i] * gelu_derivative(to_float(before[i])));
          }
        });
  }

 private:
  Isa isa_;
  Rows<T> pre_, dx_;
};

// Rows of one partial sum of a column.
constexpr int64_t column_sum_rows = 64;

// sums[o] += sum over n of d[n, o] for o in [first, first + count)
template <class T>
[[gnu::always_inline]] inline void add_column_sums(Rows<T> d, int64_t N, int64_t first, int64_t count,
                                                   float* partial, float* sums) {
  for (int64_t begin = 0; begin < N; begin += column_sum_rows) {
    std::fill(partial, partial + count, 0.0f);
    for (int64_t r = begin; r < std::min(N, begin + column_sum_rows); ++r) {
      const T* row = d[r] + first;
#pragma omp simd
      for (int64_t o = 0; o < count; ++o)
        partial[o] += to_float(row[o]);
    }
#pragma omp simd
    for (int64_t o = 0; o < count; ++o)
      sums[first + o] += partial[o];
  }
}

}  // namespace

void CpuOps::linear_forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                            Activation activation, const Tensor& pre) {
  const int64_t N = x.dim(0), K = x.dim(1), O = w.dim(0);
  expect("x", x, {N, K});
  expect("w", w, {O, K});
  expect_if_present("bias", bias, {O});
  expect("y", y, {N, O});
  expect_if_present("pre", pre, {N, O});
  const bool with_gelu = activation == Activation::gelu;
  const Tensor& rounded_sum = with_gelu && pre ? pre : y;  // the activation sees the rounded value
  with_compute_type(x.dtype, [&]<class T>(T) {
    const ForwardStore<T> store(isa_, data_or_null<T>(bias), Rows<T>(rounded_sum),
                                with_gelu ? Rows<T>(y) : Rows<T>());
    const bool in_place = x.dtype == DType::f32;
    gemm_.multiply({x, false}, {w, true}, in_place ? rounded_sum : Tensor{}, false,
                   in_place && !bias && !with_gelu ? nullptr : &store);
  });
}

void CpuOps::linear_backward_input(const Tensor& dy, const Tensor& w, const Tensor& dx, const Tensor& pre) {
  const int64_t N = dy.dim(0), O = dy.dim(1), K = w.dim(1);
  expect("dy", dy, {N, O});
  expect("w", w, {O, K});
  expect("dx", dx, {N, K});
  expect_if_present("pre", pre, {N, K});
  with_compute_type(dy.dtype, [&]<class T>(T) {
    const BackwardStore<T> store(isa_, Rows<T>(pre), Rows<T>(dx));
    // dx may be the memory of pre, so with pre the sums are made elsewhere.
    const bool in_place = dy.dtype == DType::f32 && !pre;
    gemm_.multiply({dy, false}, {w, false}, in_place ? dx : Tensor{}, false, in_place ? nullptr : &store);
  });
}

void CpuOps::linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw,
                                    const Tensor& dbias) {
  const int64_t N = dy.dim(0), O = dy.dim(1), K = x.dim(1);
  expect("dy", dy, {N, O});
  expect("x", x, {N, K});
  expect("dw", dw, {O, K});
  expect_if_present("dbias", dbias, {O});
  gemm_.multiply({dy, true}, {x, false}, dw, true, nullptr);
  if (!dbias) return;
  with_compute_type(dy.dtype, [&]<class T>(T) {
    constexpr int64_t columns = 64;
    const Rows<T> d(dy);
    float* sums = dbias.as<float>();
    parallel(O, columns, static_cast<double>(N) * 0.1, [&](int64_t begin, int64_t end) {
      simd(
          isa_, [=](auto) __attribute__((always_inline)) {
            float partial[columns];
            add_column_sums(d, N, begin, end - begin, partial, sums);
          });
    });
  });
}

void CpuOps::gelu_forward(const Tensor& pre, const Tensor& y) {
  const int64_t N = pre.dim(0), O = pre.dim(1);
  expect("pre", pre, {N, O});
  expect("y", y, {N, O});
  with_compute_type(pre.dtype, [&]<class T>(T) {
    const Rows<T> from(pre), to(y);
    parallel(N, 16, static_cast<double>(O) * 0.5, [&](int64_t begin, int64_t end) {
      simd(
          isa_, [=](auto) __attribute__((always_inline)) {
            for (int64_t r = begin; r < end; ++r)
              gelu_span(from[r], to[r], O);
          });
    });
  });
}

}  // namespace hearth::cpu
