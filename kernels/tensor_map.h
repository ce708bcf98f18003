// Tensor maps: how TMA is told about a matrix in global memory (host).
#pragma once

#include <cstdint>

#include "kernels/ptx_sm90.cuh"

namespace hearth::kernels {

// Boxes of box_rows x box_columns of a row-major matrix [rows, columns] of bf16 with `row_stride` elements
// from row to row.  In shared memory a box has the 128-byte swizzle of SharedTile, so box_columns is at
// most 64, or, with swizzled = false, row after row as they are.  The address is a multiple of 16, row_stride
// of 8, a box has at most 256 rows.  Throws Error(device) when the driver refuses.
TensorMap make_tensor_map(const bf16* matrix, int64_t rows, int64_t columns, int64_t row_stride, int box_rows,
                          int box_columns, bool swizzled = true);

}  // namespace hearth::kernels
