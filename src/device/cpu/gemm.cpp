// Packing, blocking and the choice of tiles.  The register kernel is in matmul.h.
#include "device/cpu/gemm.h"

#include <algorithm>

#include "device/cpu/cpu_ops.h"
#include "device/cpu/matmul.h"

namespace hearth::cpu {

namespace {

// Terms of the sum in one panel: a strip of B of this length stays in the first-level cache.
constexpr int64_t k_panel = 256;

struct TileShape {
  int64_t rows, columns;
};

// Large tiles pack less; at least `wanted` tiles keep the threads busy.
TileShape choose_tile(int64_t M, int64_t N) {
  constexpr int64_t wanted = 8;
  const auto pieces = [](int64_t x, int64_t size) { return (x + size - 1) / size; };
  const auto even = [&](int64_t x, int64_t size) {  // pieces of nearly equal size, multiples of 16
    const int64_t piece = pieces(x, pieces(x, size));
    return pieces(piece, 16) * 16;
  };
  int64_t rows = 512, columns = 128;
  for (;;) {
    const TileShape tile{even(M, rows), even(N, columns)};
    if (pieces(M, tile.rows) * pieces(N, tile.columns) >= wanted) return tile;
    if (rows > 128)
      rows /= 2;
    else if (columns > 64)
      columns /= 2;
    else if (rows > 64)
      rows /= 2;
    else
      return tile;
  }
}

// A tensor's memory as a strided matrix.
template <class T>
struct Operand {
  const T* data;
  int64_t stride;  // between rows of the tensor
  bool transposed;

  explicit Operand(const Factor& factor)
      : data(factor.tensor.as<T>()), stride(factor.tensor.stride[0]), transposed(factor.transposed) {}
};

// strips [ceil(N / S), K, S] = B[k0 .. k0 + K, n0 .. n0 + N], S = 2 vectors, padded with zeros.
template <int W, class T>
[[gnu::always_inline]] inline void pack_columns(Operand<T> B, int64_t k0, int64_t K, int64_t n0, int64_t N,
                                                float* strips) {
  constexpr int64_t S = 2 * W;
  for (int64_t n = 0; n < N; n += S, strips += K * S) {
    const int64_t columns = std::min(S, N - n);
    if (columns < S) std::fill(strips, strips + K * S, 0.0f);
    if (B.transposed) {
      transpose<W>(B.data + (n0 + n) * B.stride + k0, B.stride, columns, K, strips, S);
      continue;
    }
    for (int64_t k = 0; k < K; ++k) {
      const T* from = B.data + (k0 + k) * B.stride + n0 + n;
      float* to = strips + k * S;
      if (columns == S) {
#pragma omp simd
        for (int64_t j = 0; j < S; ++j)
          to[j] = to_float(from[j]);
      } else {
        for (int64_t j = 0; j < columns; ++j)
          to[j] = to_float(from[j]);
      }
    }
  }
}

// The block A[m0 .. m0 + M, k0 .. k0 + K]: where it lies if it is fp32 with rows along k, else dense in
// `copy` with the order of the tensor kept.
template <class T>
[[gnu::always_inline]] inline MatrixView block_of(Operand<T> A, int64_t m0, int64_t M, int64_t k0, int64_t K,
                                                  float* copy) {
  if constexpr (std::is_same_v<T, float>)
    if (!A.transposed) return {A.data + m0 * A.stride + k0, A.stride, 1};
  const int64_t rows = A.transposed ? K : M, columns = A.transposed ? M : K;
  const T* from = A.data + (A.transposed ? k0 * A.stride + m0 : m0 * A.stride + k0);
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c)
      copy[r * columns + c] = to_float(from[r * A.stride + c]);
  }
  return A.transposed ? MatrixView{copy, 1, columns} : MatrixView{copy, columns, 1};
}

// C (+)= A strips, where the last columns may end inside a strip.
template <int W, int R>
[[gnu::always_inline]] inline void multiply_strips(int64_t M, int64_t N, int64_t K, MatrixView A,
                                                   const float* strips, float* C, int64_t ldc,
                                                   bool accumulate, float* edge) {
  constexpr int64_t S = 2 * W;
  for (int64_t n = 0; n < N; n += S, strips += K * S) {
    if (n + S <= N) {
      multiply_columns<W, R, 2>(M, K, A, strips, S, C + n, ldc, accumulate);
      continue;
    }
    multiply_columns<W, R, 2>(M, K, A, strips, S, edge, S, false);
    for (int64_t m = 0; m < M; ++m)
      for (int64_t j = 0; j < N - n; ++j)
        C[m * ldc + n + j] = edge[m * S + j] + (accumulate ? C[m * ldc + n + j] : 0.0f);
  }
}

// One tile: all panels of the sum.
template <int W, int R, class T>
[[gnu::always_inline]] inline void make_tile(Operand<T> A, Operand<T> B, GemmTile tile, int64_t K, float* C,
                                             bool accumulate, float* scratch) {
  const int64_t panel = std::min(K, k_panel);
  float* strips = scratch;
  float* copy = strips + ((tile.columns + 2 * W - 1) / (2 * W) * (2 * W)) * panel;
  float* edge = copy + tile.rows * panel;
  for (int64_t k = 0; k < K; k += panel) {
    const int64_t terms = std::min(panel, K - k);
    pack_columns<W>(B, k, terms, tile.column, tile.columns, strips);
    const MatrixView a = block_of(A, tile.row, tile.rows, k, terms, copy);
    multiply_strips<W, R>(tile.rows, tile.columns, terms, a, strips, C, tile.stride, accumulate || k > 0,
                          edge);
  }
}

}  // namespace

void gemm(ThreadPool& pool, Isa isa, const Factor& A, const Factor& B, const Tensor& direct, bool accumulate,
          const TileStore* store) {
  const int64_t M = A.rows(), N = B.columns(), K = A.columns();
  check(B.rows() == K, "product of ", A.tensor.shape, " and ", B.tensor.shape);
  const TileShape shape = choose_tile(M, N);
  const int64_t across = (N + shape.columns - 1) / shape.columns, down = (M + shape.rows - 1) / shape.rows;
  const int64_t panel = std::min(K, k_panel);
  const int64_t work = (shape.columns + 32) * panel + shape.rows * (panel + 32);
  with_compute_type(A.tensor.dtype, [&]<class T>(T) {
    const Operand<T> a(A), b(B);
    pool.run(across * down, [&](int64_t task) {
      GemmTile tile{};
      tile.row = task / across * shape.rows;
      tile.rows = std::min(shape.rows, M - tile.row);
      tile.column = task % across * shape.columns;
      tile.columns = std::min(shape.columns, N - tile.column);
      float* scratch = thread_scratch(work + (direct ? 0 : shape.rows * shape.columns));
      tile.stride = direct ? direct.stride[0] : shape.columns;
      float* C = direct ? direct.as<float>() + tile.row * tile.stride + tile.column : scratch + work;
      tile.sum = C;
      simd(
          isa, [=](auto tag) __attribute__((always_inline)) {
            using Tag = decltype(tag);
            make_tile<Tag::width, register_rows<Tag::isa>>(a, b, tile, K, C, accumulate, scratch);
          });
      if (store) store->store(tile);
    });
  });
}

}  // namespace hearth::cpu
