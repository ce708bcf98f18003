// The small matrix product, compiled for each instruction set.
#include "device/cpu/matmul.h"

namespace hearth::cpu {

template <int W, int R>
[[gnu::always_inline]] static inline void multiply(int64_t M, int64_t N, int64_t K, MatrixView A,
                                                   const float* B, int64_t ldb, float* C, int64_t ldc,
                                                   bool accumulate) {
  int64_t n = 0;
  for (; n + 2 * W <= N; n += 2 * W)
    multiply_columns<W, R, 2>(M, K, A, B + n, ldb, C + n, ldc, accumulate);
  for (; n + W <= N; n += W)
    multiply_columns<W, R, 1>(M, K, A, B + n, ldb, C + n, ldc, accumulate);
  for (; n < N; ++n)
    multiply_columns<1, R, 1>(M, K, A, B + n, ldb, C + n, ldc, accumulate);
}

void matmul(Isa isa, int64_t M, int64_t N, int64_t K, MatrixView A, const float* B, int64_t ldb, float* C,
            int64_t ldc, bool accumulate) {
  simd(
      isa, [=](auto tag) __attribute__((always_inline)) {
        using Tag = decltype(tag);
        multiply<Tag::width, register_rows<Tag::isa>>(M, N, K, A, B, ldb, C, ldc, accumulate);
      });
}

}  // namespace hearth::cpu
