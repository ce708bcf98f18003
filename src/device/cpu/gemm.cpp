// The choice of tiles, and the call of oneDNN for each.
#include "device/cpu/gemm.h"

#include <dnnl.h>

#include <algorithm>

#include "device/cpu/cpu_ops.h"
#include "device/cpu/vector.h"

// Exported by oneDNN, but in none of its headers: the arguments of dnnl_sgemm, with A and B in bf16.
extern "C" dnnl_status_t dnnl_gemm_bf16bf16f32(char transa, char transb, dnnl_dim_t M, dnnl_dim_t N,
                                               dnnl_dim_t K, float alpha, const uint16_t* A, dnnl_dim_t lda,
                                               const uint16_t* B, dnnl_dim_t ldb, float beta, float* C,
                                               dnnl_dim_t ldc);

namespace hearth::cpu {

namespace {

// Terms of the sum for which bf16 panels are converted at once.
constexpr int64_t panel_terms = 1024;

struct TileShape {
  int64_t rows, columns;
};

int64_t pieces(int64_t x, int64_t size) {
  return (x + size - 1) / size;
}

// Large tiles pack less; at least `wanted` of them keep the threads busy.  oneDNN's kernel makes 48 columns
// at once, and likes wide tiles better than tall ones.
TileShape choose_tile(int64_t M, int64_t N) {
  constexpr int64_t wanted = 6, row_step = 16;
  const int64_t column_step = N >= 384 ? 48 : 64;
  const auto size = [](int64_t x, int64_t cuts, int64_t step) {
    return pieces(pieces(x, cuts), step) * step;
  };
  int64_t row_cuts = pieces(M, 1024), column_cuts = pieces(N, 768);
  for (;;) {
    const TileShape tile{size(M, row_cuts, row_step), size(N, column_cuts, column_step)};
    if (pieces(M, tile.rows) * pieces(N, tile.columns) >= wanted) return tile;
    if (tile.columns > 512)
      ++column_cuts;
    else if (tile.rows > 96)
      ++row_cuts;
    else if (tile.columns > 128)
      ++column_cuts;
    else if (tile.rows > 32)
      ++row_cuts;
    else
      return tile;
  }
}

// The part [rows, columns] at (row, column) of an operand, as the tensor that holds it.
Tensor part(const Factor& f, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  return f.transposed ? f.tensor.slice(0, column, columns).slice(1, row, rows)
                      : f.tensor.slice(0, row, rows).slice(1, column, columns);
}

// A bf16 matrix as fp32 in `copy`, without gaps.
Tensor widened(Isa isa, const Tensor& matrix, float* copy) {
  const Rows<bf16> from(matrix);
  const int64_t rows = matrix.dim(0), columns = matrix.dim(1);
  simd(
      isa, [=](auto) __attribute__((always_inline)) {
        for (int64_t r = 0; r < rows; ++r) {
          const bf16* in = from[r];
#pragma omp simd
          for (int64_t c = 0; c < columns; ++c)
            copy[r * columns + c] = to_float(in[c]);
        }
      });
  return Tensor(copy, DType::f32, matrix.shape);
}

char letter(const Factor& f) {
  return f.transposed ? 'T' : 'N';
}

// C (+)= A B for one tile and some terms of the sum.
void call_onednn(const Factor& A, const Factor& B, const GemmTile& tile, bool accumulate) {
  const int64_t K = A.columns(), lda = A.tensor.stride[0], ldb = B.tensor.stride[0];
  const float beta = accumulate ? 1.0f : 0.0f;
  const dnnl_status_t status =
      A.tensor.dtype == DType::f32
          ? dnnl_sgemm(letter(A), letter(B), tile.rows, tile.columns, K, 1.0f, A.tensor.as<float>(), lda,
                       B.tensor.as<float>(), ldb, beta, tile.sum, tile.stride)
          : dnnl_gemm_bf16bf16f32(letter(A), letter(B), tile.rows, tile.columns, K, 1.0f,
                                  reinterpret_cast<const uint16_t*>(A.tensor.data), lda,
                                  reinterpret_cast<const uint16_t*>(B.tensor.data), ldb, beta, tile.sum,
                                  tile.stride);
  check(status == dnnl_success, "oneDNN failed with status ", static_cast<int>(status), " on [", tile.rows,
        ", ", K, "] x [", K, ", ", tile.columns, "]");
}

// One tile from bf16 operands, panel by panel.
void multiply_widened(Isa isa, const Factor& A, const Factor& B, const GemmTile& tile, bool accumulate,
                      float* scratch) {
  const int64_t K = A.columns();
  for (int64_t k = 0; k < K; k += panel_terms) {
    const int64_t terms = std::min(panel_terms, K - k);
    const auto prepared = [&](const Tensor& t, float* copy) {
      return t.dtype == DType::bf16 ? widened(isa, t, copy) : t;
    };
    const Tensor a = prepared(part(A, tile.row, tile.rows, k, terms), scratch);
    const Tensor b =
        prepared(part(B, k, terms, tile.column, tile.columns), scratch + tile.rows * panel_terms);
    call_onednn({a, A.transposed}, {b, B.transposed}, tile, accumulate || k > 0);
  }
}

}  // namespace

// oneDNN packs a transposed B slowly, and once for every tile: a small one is better transposed here, once.
template <class T>
Factor Gemm::transposed_once(const Factor& B) {
  constexpr int64_t small = 256 * 1024;
  const int64_t K = B.rows(), N = B.columns();
  if (!B.transposed || K * N > small) return B;
  right_.resize(std::max(right_.size(), static_cast<size_t>(K * N)));
  simd(
      isa_, [ from = Rows<T>(B.tensor), to = right_.data(), N, K ](auto tag) __attribute__((always_inline)) {
        transpose<decltype(tag)::width>(from[0], from.stride, N, K, to, N);
      });
  return {Tensor(right_.data(), DType::f32, {K, N}), false};
}

// A bf16 operand that several tiles read is better widened here, once, unless it is so large that each tile's
// part of it is.
Factor Gemm::widened_once(const Factor& f, std::vector<float>& copy) {
  constexpr int64_t large = 1 << 20, rows_per_task = 64;
  const Tensor& t = f.tensor;
  if (t.dtype != DType::bf16 || t.elements() > large) return f;
  copy.resize(std::max(copy.size(), static_cast<size_t>(t.elements())));
  pool_.run(pieces(t.dim(0), rows_per_task), [&](int64_t task) {
    const int64_t row = task * rows_per_task, rows = std::min(rows_per_task, t.dim(0) - row);
    widened(isa_, t.rows(row, rows), copy.data() + row * t.dim(1));
  });
  return {Tensor(copy.data(), DType::f32, t.shape), f.transposed};
}

// fp32 operands that do not change the product but make it faster.
Gemm::Operands Gemm::prepare(const Factor& A, const Factor& B) {
  const bool multiply_bf16 = A.tensor.dtype == DType::bf16 && native_bf16_;
  if (multiply_bf16) return {A, B};
  const Factor b = B.tensor.dtype == DType::f32 ? transposed_once<float>(B) : transposed_once<bf16>(B);
  return {widened_once(A, left_), widened_once(b, right_)};
}

void Gemm::multiply(const Factor& A, const Factor& B, const Tensor& direct, bool accumulate,
                    const TileStore* store) {
  const int64_t M = A.rows(), N = B.columns(), K = A.columns();
  check(B.rows() == K, "product of ", A.tensor.shape, " and ", B.tensor.shape);
  const TileShape shape = choose_tile(M, N);
  const int64_t across = pieces(N, shape.columns), down = pieces(M, shape.rows);
  const auto [a, b] = prepare(A, B);
  const bool widen = !native_bf16_ && (a.tensor.dtype == DType::bf16 || b.tensor.dtype == DType::bf16);
  const int64_t panels = widen ? (shape.rows + shape.columns) * panel_terms : 0;
  pool_.run(across * down, [&, &a = a, &b = b](int64_t task) {
    GemmTile tile{};
    tile.row = task / across * shape.rows;
    tile.rows = std::min(shape.rows, M - tile.row);
    tile.column = task % across * shape.columns;
    tile.columns = std::min(shape.columns, N - tile.column);
    float* scratch = thread_scratch(panels + (direct ? 0 : shape.rows * shape.columns));
    tile.stride = direct ? direct.stride[0] : shape.columns;
    tile.sum = direct ? direct.as<float>() + tile.row * tile.stride + tile.column : scratch + panels;
    if (widen) {
      multiply_widened(isa_, a, b, tile, accumulate, scratch);
    } else {
      const Tensor left = part(a, tile.row, tile.rows, 0, K),
                   right = part(b, 0, K, tile.column, tile.columns);
      call_onednn({left, a.transposed}, {right, b.transposed}, tile, accumulate);
    }
    if (store) store->store(tile);
  });
}

}  // namespace hearth::cpu
