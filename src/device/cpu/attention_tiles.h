// What the forward and backward attention share: tiles of heads in fp32 scratch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cpu/vector.h"
#include "tensor/tensor.h"

namespace hearth::cpu {

// Queries and keys of one tile, and the step in which the causal diagonal is followed.
constexpr int64_t tile = 64;
constexpr int64_t diagonal_step = 16;

inline int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// One head of one sequence: row t at data + t * stride.
template <class T>
struct Head {
  T* data;
  int64_t stride;

  Head(const Tensor& heads, int64_t b, int64_t h)
      : data(heads.as<T>() + b * heads.stride[0] + h * heads.stride[2]), stride(heads.stride[1]) {}
  T* operator[](int64_t t) const { return data + t * stride; }
};

// out [rows, Dp] = scale * head rows begin ..., columns D .. Dp zero.
template <class T>
[[gnu::always_inline]] inline void load_rows(Head<T> head, int64_t begin, int64_t rows, int64_t D, int64_t Dp,
                                             float scale, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = head[begin + r];
    float* to = out + r * Dp;
#pragma omp simd
    for (int64_t d = 0; d < D; ++d)
      to[d] = scale * to_float(from[d]);
    for (int64_t d = D; d < Dp; ++d)
      to[d] = 0;
  }
}

// out [D, tile] = transposed rows; columns rows .. tile zero.
template <int W, class T>
[[gnu::always_inline]] inline void load_transposed(Head<T> head, int64_t begin, int64_t rows, int64_t D,
                                                   float* out) {
  transpose<W>(head[begin], head.stride, rows, D, out, tile);
  if (rows == tile) return;
  for (int64_t d = 0; d < D; ++d)
    std::fill(out + d * tile + rows, out + (d + 1) * tile, 0.0f);
}

// head rows begin ... = rounded(scale * from [rows, Dp])
template <class T>
[[gnu::always_inline]] inline void store_rows(Head<T> head, int64_t begin, int64_t rows, int64_t D,
                                              int64_t Dp, float scale, const float* from) {
  for (int64_t r = 0; r < rows; ++r) {
    T* to = head[begin + r];
#pragma omp simd
    for (int64_t d = 0; d < D; ++d)
      to[d] = rounded<T>(scale * from[r * Dp + d]);
  }
}

}  // namespace hearth::cpu
