// Register-sized vectors of floats as values, for kernels that block by hand:
// loads, stores and the transpose.
#pragma once

#include <cstdint>

#include "device/cpu/simd.h"

namespace hearth::cpu {

template <int W>
struct Vector {
  typedef float type __attribute__((vector_size(W * sizeof(float))));
  typedef int32_t index __attribute__((vector_size(W * sizeof(int32_t))));
  // The same in memory: any alignment.
  typedef float memory __attribute__((vector_size(W * sizeof(float)), aligned(sizeof(float)), may_alias));
};

// W elements as floats, and back.
template <int W>
[[gnu::always_inline]] inline void load_vector(const float* from, typename Vector<W>::type& to) {
  to = *reinterpret_cast<const typename Vector<W>::memory*>(from);
}
template <int W>
[[gnu::always_inline]] inline void load_vector(const bf16* from, typename Vector<W>::type& to) {
  float widened[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i)
    widened[i] = to_float(from[i]);
  load_vector<W>(widened, to);
}
template <int W>
[[gnu::always_inline]] inline void store_vector(const typename Vector<W>::type& from, float* to) {
  *reinterpret_cast<typename Vector<W>::memory*>(to) = from;
}

// The elements of a and b in turn: the lower halves, and the upper halves.
template <int W, bool upper>
[[gnu::always_inline]] inline void interleave(const typename Vector<W>::type& a,
                                              const typename Vector<W>::type& b,
                                              typename Vector<W>::type& out) {
  typename Vector<W>::index order;
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i)
    order[i] = (upper ? W / 2 : 0) + i / 2 + (i % 2) * W;
  out = __builtin_shuffle(a, b, order);
}

// out[j * out_stride + i] = in[i * in_stride + j] for i, j < W.  log2(W) perfect shuffles of the rows.
template <int W, class T>
[[gnu::always_inline]] inline void transpose_square(const T* in, int64_t in_stride, float* out,
                                                    int64_t out_stride) {
  typename Vector<W>::type rows[W], shuffled[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i)
    load_vector<W>(in + i * in_stride, rows[i]);
#pragma GCC unroll 4
  for (int stage = 1; stage < W; stage *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < W / 2; ++i) {
      interleave<W, false>(rows[i], rows[i + W / 2], shuffled[2 * i]);
      interleave<W, true>(rows[i], rows[i + W / 2], shuffled[2 * i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i)
      rows[i] = shuffled[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i)
    store_vector<W>(rows[i], out + i * out_stride);
}

// out[j * out_stride + i] = in[i * in_stride + j] for i < rows, j < columns.
template <int W, class T>
[[gnu::always_inline]] inline void transpose(const T* in, int64_t in_stride, int64_t rows, int64_t columns,
                                             float* out, int64_t out_stride) {
  const int64_t whole_rows = rows / W * W, whole_columns = columns / W * W;
  for (int64_t i = 0; i < whole_rows; i += W)
    for (int64_t j = 0; j < whole_columns; j += W)
      transpose_square<W>(in + i * in_stride + j, in_stride, out + j * out_stride + i, out_stride);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
      out[j * out_stride + i] = to_float(in[i * in_stride + j]);
}

}  // namespace hearth::cpu
