// The matrix product behind linear layers.
//
// C [M, N] is cut into tiles by the shape alone; one task makes one tile with the whole sum over K in order,
// so bits do not depend on the number of threads.  A task packs its columns of B, K panel by K panel, into
// fp32 strips as wide as the register block, and converts its rows of A where they are bf16.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "device/cpu/simd.h"
#include "tensor/tensor.h"

namespace hearth::cpu {

// A matrix operand [rows, columns]: the tensor or its transpose.
struct Factor {
  const Tensor& tensor;
  bool transposed;

  int64_t rows() const { return tensor.dim(transposed ? 1 : 0); }
  int64_t columns() const { return tensor.dim(transposed ? 0 : 1); }
};

// Finished sums of rows [row, row + rows) and columns [column, column + columns) of C.
struct GemmTile {
  int64_t row, rows, column, columns;
  const float* sum;
  int64_t stride;
};

// What happens to a tile while it is in cache.
class TileStore {
 public:
  virtual ~TileStore() = default;
  virtual void store(const GemmTile& tile) const = 0;
};

// A B, in fp32 arithmetic.  If `direct` is given (f32, [M, N]) tiles are made in its memory, and added to it
// when `accumulate`; else in scratch.  Then `store`, if given, sees each tile.
void gemm(ThreadPool& pool, Isa isa, const Factor& A, const Factor& B, const Tensor& direct, bool accumulate,
          const TileStore* store);

}  // namespace hearth::cpu
