// Tiles of bf16 in shared memory, and the fragments that tensor cores multiply.
//
// Kernels speak of tiles, rows and columns; the lane arithmetic of ldmatrix and mma.sync is here, once.
#pragma once

#include "kernels/ptx.cuh"

namespace hearth {

constexpr int chunk_elements = 8;  // bf16 in 16 bytes, the unit of every copy

// rows x columns of bf16, row after row.  The 16-byte chunks of a row are permuted by its number, so that the
// 8 rows of a column of chunks lie in 8 different bank groups: ldmatrix and cp.async meet no bank conflicts.
// Rows of 64 elements have TMA's 128-byte swizzle if the tile starts at a multiple of 1024.
template <int rows_, int columns_>
struct SharedTile {
  static constexpr int rows = rows_;
  static constexpr int columns = columns_;
  static constexpr int chunks = columns / chunk_elements;  // of a row
  static constexpr int bytes = rows * columns * static_cast<int>(sizeof(bf16));
  static_assert(chunks == 4 || chunks % 8 == 0, "rows of 32 or of a multiple of 64 elements");

  SharedAddress base;

  // Chunk `chunk` of row `row`.
  __device__ __forceinline__ SharedAddress at(int row, int chunk) const {
    const int permuted = chunks == 4 ? chunk ^ (row >> 1 & 3) : chunk ^ (row & 7);
    return base + static_cast<SharedAddress>(row * chunks + permuted) * 16;
  }
};

// Starts copying rows x columns of a row-major matrix into a tile.  `from` is the tile's first element,
// `stride` the matrix's row stride; rows and columns at or beyond `valid_rows`, `valid_columns` (a multiple
// of 8) become 0. Thread `thread` of `threads` does its share; the caller commits.
template <int threads, class Tile>
__device__ __forceinline__ void copy_tile_async(const Tile& tile, const bf16* from, int64_t stride,
                                                int64_t valid_rows, int64_t valid_columns, int thread,
                                                Site site = Site::here()) {
  constexpr int chunks = Tile::rows * Tile::chunks;
  static_assert(chunks % threads == 0, "the threads share the tile evenly");
#pragma unroll
  for (int i = 0; i < chunks / threads; ++i) {
    const int index = i * threads + thread;
    const int row = index / Tile::chunks;
    const int chunk = index % Tile::chunks;
    const bool valid = row < valid_rows && chunk * chunk_elements < valid_columns;
    const bf16* source = valid ? from + row * stride + chunk * chunk_elements : from;
    ptx::cp_async16(tile.at(row, chunk), source, valid, site);
  }
}

// ---- fragments of m16n8k16 (see ptx::mma_m16n8k16).  "K-major": the tile's rows run along k; else its
// columns do not, and the fragment is transposed while it is loaded.

// A, 16x16 at (m, k).  K-major tile [m][k], else [k][m].
template <bool k_major, class Tile>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const Tile& tile, int m, int k,
                                       Site site = Site::here()) {
  const int lane = lane_index();
  if constexpr (k_major)
    ptx::ldmatrix_x4(a, tile.at(m + (lane & 15), k / 8 + (lane >> 4)), site);
  else
    ptx::ldmatrix_x4_trans(a, tile.at(k + (lane & 7) + 8 * (lane >> 4), m / 8 + (lane >> 3 & 1)), site);
}

// B, two neighbouring 16x8 at (n, k) and (n + 8, k): b[0], b[1] and b[2], b[3].
// K-major tile [n][k], else [k][n].
template <bool k_major, class Tile>
__device__ __forceinline__ void load_b(uint32_t (&b)[4], const Tile& tile, int n, int k,
                                       Site site = Site::here()) {
  const int lane = lane_index();
  if constexpr (k_major)
    ptx::ldmatrix_x4(b, tile.at(n + (lane & 7) + 8 * (lane >> 4), k / 8 + (lane >> 3 & 1)), site);
  else
    ptx::ldmatrix_x4_trans(b, tile.at(k + (lane & 15), n / 8 + (lane >> 4)), site);
}

// Row and column, within its 16x8 tile, of element i of this lane's accumulator.
__device__ __forceinline__ int accumulator_row(int i) {
  return (lane_index() >> 2) + 8 * (i >> 1);
}
__device__ __forceinline__ int accumulator_column(int i) {
  return 2 * (lane_index() & 3) + (i & 1);
}

}  // namespace hearth
