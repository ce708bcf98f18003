// The matrix product behind linear layers: oneDNN, single-threaded, on tiles handed out by our own pool.
//
// C [M, N] is cut into tiles by the shape alone; one task makes one tile with the whole sum over K, so bits
// do not depend on the number of threads.  bf16 operands are converted to fp32 panels in scratch (exact),
// unless the processor multiplies bf16 faster than fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "device/cpu/simd.h"
#include "tensor/tensor.h"

namespace hearth::cpu {

// A matrix operand [rows, columns]: the tensor or its transpose.
struct Factor {
  Tensor tensor;
  bool transposed;

  int64_t rows() const { return tensor.dim(transposed ? 1 : 0); }
  int64_t columns() const { return tensor.dim(transposed ? 0 : 1); }
};

// Finished sums of rows [row, row + rows) and columns [column, column + columns) of C.
struct GemmTile {
  int64_t row, rows, column, columns;
  float* sum;
  int64_t stride;
};

// What happens to a tile while it is in cache.
class TileStore {
 public:
  virtual ~TileStore() = default;
  virtual void store(const GemmTile& tile) const = 0;
};

class Gemm {
 public:
  // `native_bf16`: use the bf16 instructions.
  Gemm(ThreadPool& pool, Isa isa, bool native_bf16) : pool_(pool), isa_(isa), native_bf16_(native_bf16) {}

  // A B.  If `direct` is given (f32 [M, N]) tiles are made in its memory, and added to it when `accumulate`;
  // else in scratch.  Then `store`, if given, sees each tile.
  void multiply(const Factor& A, const Factor& B, const Tensor& direct, bool accumulate,
                const TileStore* store);

 private:
  struct Operands {
    Factor a, b;
  };
  Operands prepare(const Factor& A, const Factor& B);
  template <class T>
  Factor transposed_once(const Factor& B);
  Factor widened_once(const Factor& f, std::vector<float>& copy);

  ThreadPool& pool_;
  Isa isa_;
  bool native_bf16_;
  // Copies of the operands of the product that is running: grown once.
  std::vector<float> left_, right_;
};

}  // namespace hearth::cpu
