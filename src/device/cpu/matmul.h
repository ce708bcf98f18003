// Small matrix products in cache: the inside of attention and of the tiles of a linear layer.
#pragma once

#include "device/cpu/vector.h"

namespace hearth::cpu {

// A strided matrix; element (i, j) is data[i * row + j * column].
struct MatrixView {
  const float* data;
  int64_t row;
  int64_t column;

  MatrixView below(int64_t rows) const { return {data + rows * row, row, column}; }
};

// How many rows of C a kernel keeps in registers, with two vectors each.
template <Isa isa>
constexpr int register_rows = isa == Isa::avx512 ? 8 : 4;

// C [R, V * W] (+)= A [R, K] B [K, V * W], sums over k in order.
template <int W, int R, int V>
[[gnu::always_inline]] inline void multiply_block(int64_t K, MatrixView A, const float* B, int64_t ldb,
                                                  float* C, int64_t ldc, bool accumulate) {
  typename Vector<W>::type sum[R][V] = {};
  for (int64_t k = 0; k < K; ++k) {
    typename Vector<W>::type b[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      load_vector<W>(B + k * ldb + v * W, b[v]);
    const float* a = A.data + k * A.column;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float x = a[r * A.row];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v)
        sum[r][v] += x * b[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      float* c = C + r * ldc + v * W;
      if (accumulate) {
        typename Vector<W>::type before;
        load_vector<W>(c, before);
        sum[r][v] += before;
      }
      store_vector<W>(sum[r][v], c);
    }
  }
}

// All M rows of one block of columns; the last rows go in smaller blocks.
template <int W, int R, int V>
[[gnu::always_inline]] inline void multiply_columns(int64_t M, int64_t K, MatrixView A, const float* B,
                                                    int64_t ldb, float* C, int64_t ldc, bool accumulate) {
  int64_t m = 0;
  for (; m + R <= M; m += R)
    multiply_block<W, R, V>(K, A.below(m), B, ldb, C + m * ldc, ldc, accumulate);
  if constexpr (R > 1)
    if (m < M) multiply_columns<W, R / 2, V>(M - m, K, A.below(m), B, ldb, C + m * ldc, ldc, accumulate);
}

// C [M, N] = (or, when accumulating, +=) A [M, K] B [K, N].  B and C are row-major with row strides ldb and
// ldc.  Meant for a B that is in the first-level cache; fastest when N is a multiple of two vectors.
void matmul(Isa isa, int64_t M, int64_t N, int64_t K, MatrixView A, const float* B, int64_t ldb, float* C,
            int64_t ldc, bool accumulate);

}  // namespace hearth::cpu
