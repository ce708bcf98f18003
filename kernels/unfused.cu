// d *= gelu'(pre), and column sums.
//
// gelu': a thread handles 8 neighbours of a row; each operand is read or written once.
// Column sums: a block adds 64 columns.  Thread t has 8 of them, those of vector t % 8, of rows t / 8, t / 8
// + 32 and so on; the 32 threads of a vector are added through shared memory in ascending order.  x is read
// once, but by columns / 64 blocks alone, which is too few for full bandwidth: simplicity is worth more here.
#include "kernels/unfused.h"

#include "base/error.h"
#include "kernels/gelu.cuh"
#include "kernels/rows.cuh"

namespace hearth::kernels {
namespace {

constexpr int threads = 256;
constexpr int vectors = 8;  // of a row, in a block
constexpr int rows_at_once = threads / vectors;
constexpr int block_columns = vectors * pack;

__global__ void __launch_bounds__(threads)
    multiply_gelu_derivative_kernel(bf16* d, int64_t d_stride, const bf16* pre, int64_t pre_stride,
                                    int64_t rows, int64_t columns) {
  const int64_t index = global_thread_index() * pack;
  if (index >= rows * columns) return;
  const int64_t row = index / columns, column = index % columns;
  bf16* const target = d + row * d_stride + column;
  float x[pack], argument[pack];
  widen(load16(target), x);
  widen(load16(pre + row * pre_stride + column), argument);
#pragma unroll
  for (int i = 0; i < pack; ++i)
    x[i] *= gelu_derivative(argument[i]);
  store16(target, rounded(x));
}

__global__ void __launch_bounds__(threads)
    add_column_sums_kernel(const bf16* x, int64_t stride, int64_t rows, int64_t columns, float* sums) {
  const int vector = static_cast<int>(threadIdx.x) % vectors, first = static_cast<int>(threadIdx.x) / vectors;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * block_columns + vector * pack;
  float sum[pack] = {};
  if (column < columns) {
#pragma unroll 8
    for (int64_t row = first; row < rows; row += rows_at_once) {
      float some[pack];
      widen(load16(x + row * stride + column), some);
#pragma unroll
      for (int i = 0; i < pack; ++i)
        sum[i] += some[i];
    }
  }
  // The sums of all rows' threads, [rows_at_once, block_columns].
  const auto place = [](int row, int in_block) {
    return shared_memory() + static_cast<SharedAddress>((row * block_columns + in_block) * 4);
  };
#pragma unroll
  for (int i = 0; i < pack; ++i)
    shared_store(place(first, vector * pack + i), sum[i]);
  __syncthreads();  // they are visible
  const int mine = static_cast<int>(threadIdx.x);
  const int64_t my_column = static_cast<int64_t>(blockIdx.x) * block_columns + mine;
  if (mine >= block_columns || my_column >= columns) return;
  float total = 0;
  for (int row = 0; row < rows_at_once; ++row)
    total += shared_load<float>(place(row, mine));
  sums[my_column] += total;
}

unsigned blocks(int64_t count) {
  check(count < (int64_t{1} << 31), count, " blocks are more than a grid can have");
  return static_cast<unsigned>(count);
}

}  // namespace

void multiply_gelu_derivative(bf16* d, int64_t d_stride, const bf16* pre, int64_t pre_stride, int64_t rows,
                              int64_t columns, cudaStream_t stream) {
  check_rows("d", Rows<bf16>{d, d_stride}, columns);
  check_rows("pre", Rows<const bf16>{pre, pre_stride}, columns);
  if (rows == 0) return;
  launch(multiply_gelu_derivative_kernel, blocks(ceil_div(rows * columns, int64_t{threads} * pack)), threads,
         0, stream, d, d_stride, pre, pre_stride, rows, columns);
}

void add_column_sums(const bf16* x, int64_t stride, int64_t rows, int64_t columns, float* sums,
                     cudaStream_t stream) {
  check_rows("x", Rows<const bf16>{x, stride}, columns);
  check(sums && columns % pack == 0, "column sums of ", columns, " columns");
  if (rows == 0) return;
  constexpr size_t shared_bytes = threads * pack * sizeof(float);
  launch(add_column_sums_kernel, blocks(ceil_div(columns, int64_t{block_columns})), threads, shared_bytes,
         stream, x, stride, rows, columns, sums);
}

}  // namespace hearth::kernels
